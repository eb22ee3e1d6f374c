"""People as annotators: responses to Label Studio's tasks, and its export back to annotated records.

python rm_data_anno/label_studio.py --task slf5k --data_path responses.json --output_path tasks.json
python rm_data_anno/label_studio.py --task slf5k --data_path responses.json --export export.json \\
    --output_path annotated.json
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal
from xml.sax.saxutils import escape

from pydantic import Field

from rm_data_anno.adjudication import LABELS, PersonsAnnotation, adjudicated, agreement
from rm_data_anno.text_offsets import Convention, chosen_convention, interval
from rm_data_anno.validation import load_unannotated, validate
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.records import check_output, load_json, save_json, save_records, save_text
from text2grad.safety.gate import fault, shown
from text2grad.safety.schema import Form, checked
from text2grad.tasks import SpanWords, Task, get_task
from text2grad.tasks.commands import quoted, say_next, stage_command
from text2grad.token_rewards import span_intervals

INTERFACE = """<View>
  <Header value="Prompt"/>
  <Text name="prompt" value="$prompt"/>
  <Header value="Response: mark what is ${good} and what is ${poor}"/>
  <Labels name="span" toName="response">
    <Label value="${good}" background="#2d5f8c"/>
    <Label value="${poor}" background="#a3304a"/>
  </Labels>
  <Text name="response" value="$response"/>
  <Header value="Critique"/>
  <TextArea name="critique" toName="response" rows="4" maxSubmissions="1" required="true"/>
  <Header value="What it lacks, one short phrase at a time (optional)"/>
  <TextArea name="missing" toName="response" rows="1"/>
  <Header value="The response as a whole (optional)"/>
  <Rating name="verdict" toName="response" maxRating="5"/>
</View>
"""
"""What annotators see, with the task's words for its spans."""
_STARS = 5


@dataclass(kw_only=True)
class LabelStudioConfig:
    """To tasks, or with ``export`` back to records."""

    data_path: str = setting(MISSING, "responses, in the task's format", "--dataset_path", "--responses")
    output_path: str = setting(MISSING, "tasks to import; with --export, annotated records", "--output_file")
    export: str = setting("", "Label Studio's export, as JSON")
    spans: bool = setting(True, "false: critiques alone were written; annotate.py --prompt human_feedback finds spans")
    offsets: Literal["auto", "code_points", "utf16"] = setting("auto", "what the export's offsets count")


class _Value(Form):
    start: int | None = None
    end: int | None = None
    text: str | list[str] | None = None
    labels: list[str] | None = None
    rating: Annotated[int, Field(ge=1, le=_STARS)] | None = None


class _Region(Form):
    type: str = ""
    from_name: str | None = None
    value: _Value | None = None


class _Who(Form):
    id: int | str | None = None
    email: str | None = None


class _Annotation(Form):
    id: int | str | None = None
    completed_by: int | str | _Who | None = None
    was_cancelled: bool | None = False
    ground_truth: bool | None = False
    updated_at: str | None = None
    result: list[_Region] | None = None

    @property
    def who(self) -> str:
        """Who made it; empty where the export does not say."""
        who = self.completed_by
        if isinstance(who, _Who):
            who = who.email or who.id
        return "" if who is None else str(who)

    def values(self, kind: str) -> list[_Value]:
        return [region.value for region in self.result or [] if region.type == kind and region.value]

    def texts(self, of_missing: bool) -> list[str]:
        """What was typed into the field of missing things, or into any other."""
        typed: list[str] = []
        for region in self.result or []:
            if region.type == "textarea" and region.value and (region.from_name == "missing") == of_missing:
                text = region.value.text or []
                typed += [text] if isinstance(text, str) else text
        return [text.strip() for text in typed if text.strip()]


class _Data(Form):
    id: str
    response: str | None = None


class _ExportedTask(Form):
    """One task of Label Studio's JSON export, as far as it is read."""

    data: _Data
    annotations: list[_Annotation] | None = None


def read_export(
    path: str | Path, responses: Mapping[str, str], offsets: str = "auto", words: SpanWords = Task.span_words
) -> dict[str, list[PersonsAnnotation]]:
    """The finished annotations of each record, one of each person, with exact intervals of its response.

    Args:
        words: what the project's labels are called.

    Raises:
        InputError: a task of no such record, an annotation without critique, offsets that do not fit their text.
    """
    value = load_json(path)
    if not isinstance(value, list):
        raise InputError(f"{path}: holds {type(value).__name__}; export the project as JSON (not JSON-MIN)")
    if problem := fault(value, finite=False):
        raise InputError(f"{path}: {problem}; correct it there")
    given: dict[str, list[_Annotation]] = {}  # of all tasks: one that was imported twice is the same record
    for number, item in enumerate(value):
        exported: _ExportedTask = checked(_ExportedTask, item, f"{path}: task {number}")
        record_id = exported.data.id
        if record_id not in responses:
            raise InputError(f"{path}: task {number} is of record {shown(record_id)}, which is not in --data_path")
        if exported.data.response not in (None, responses[record_id]):
            raise InputError(f"{path}: record {record_id!r} has another response than in --data_path; give that file")
        given.setdefault(record_id, []).extend(exported.annotations or [])
    votes = [(key, vote) for key, all_of_it in given.items() for vote in _votes(all_of_it, f"{path}: record {key!r}")]
    marked = [(responses[key], span.model_dump()) for key, vote in votes for span in vote.values("labels")]
    convention = chosen_convention(marked, offsets, str(path))
    found: dict[str, list[PersonsAnnotation]] = {}
    for record_id, vote in votes:
        where = f"{path}: record {record_id!r}, annotation {vote.id}"
        found.setdefault(record_id, []).append(_annotation(vote, responses[record_id], convention, where, words))
    return found


def _votes(annotations: Sequence[_Annotation], where: str) -> list[_Annotation]:
    """The annotation of each person that counts: the last submitted, or the last that is marked as ground truth."""
    votes: dict[str, _Annotation] = {}
    finished = [each for each in annotations if not each.was_cancelled]
    for each in sorted(finished, key=lambda each: each.updated_at or ""):
        if not each.who and len(finished) > 1:
            raise InputError(f"{where}, annotation {each.id}: completed_by is missing; say who made it")
        if each.ground_truth or each.who not in votes or not votes[each.who].ground_truth:
            votes[each.who] = each
    return sorted(votes.values(), key=lambda each: each.updated_at or "")


def _annotation(
    vote: _Annotation, response: str, convention: Convention, where: str, words: SpanWords
) -> PersonsAnnotation:
    critique = " ".join(vote.texts(of_missing=False))
    if not critique:
        raise InputError(f"{where}: has no critique; ask its annotator for one, or delete the annotation")
    person = PersonsAnnotation(vote.who, critique, [], bool(vote.ground_truth), vote.texts(of_missing=True))
    for value in vote.values("rating"):
        if value.rating:
            person.score = 2 * (value.rating - 1) / (_STARS - 1) - 1
    for value in vote.values("labels"):
        place = interval(value.model_dump(), response, convention)
        assert place is not None  # the convention explains every span
        for label in value.labels or []:
            if label not in (words.good, words.poor):
                raise InputError(
                    f"{where}: marks a span {shown(label)}; this project's labels are {words.good} and {words.poor}"
                )
            person.places.append(("good" if label == words.good else "poor", *place))
    return person


def annotated_record(task: Task, record: dict, people: Sequence[PersonsAnnotation], spans: bool) -> dict:
    """The record with the people's feedback; without spans, their critique alone for annotate.py."""
    response = task.response(record)
    final = adjudicated(people, response)
    if not spans:
        return {**record, task.human_feedback_field: final.critique}
    places = sorted(final.places, key=lambda mark: mark[1:])
    quotes = {name: list(dict.fromkeys(response[a:b] for label, a, b in places if label == name)) for name in LABELS}
    feedback = Feedback(final.critique, quotes["good"], quotes["poor"], missing=final.missing, score=final.score)
    valid = validate(feedback, response, task)
    annotation = {
        "annotator": "people",
        "people": [person.annotator for person in people],
        "adjudicated": "decided" if final.decides else "majority" if len(people) > 1 else "alone",
        "spans": [{"label": label, "start": start, "end": end} for label, start, end in places],
        "validation": valid.to_dict(),
    }
    return task.with_feedback(record, valid.feedback, annotation)


def elsewhere(task: Task, record: dict) -> int:
    """Marked spans that training would look for in another place: a short quote means its first occurrence."""
    feedback, response = task.feedback(record), task.response(record)
    assert feedback is not None
    known = dict(zip(("poor", "good"), span_intervals(feedback, response, task), strict=True))
    return sum(
        response[span["start"] : span["end"]] in getattr(feedback, span["label"])  # else validation dropped it
        and not any(start <= span["start"] and span["end"] <= end for start, end in known[span["label"]])
        for span in record["annotation"]["spans"]
    )


def write_tasks(task: Task, config: LabelStudioConfig) -> None:
    interface = Path(config.output_path).with_suffix(".interface.xml")
    check_output(config.output_path)
    check_output(interface)
    tasks = [  # each record's id is what brings its annotation back
        {"data": {"id": record_id, "prompt": task.prompt(record), "response": task.response(record)}}
        for record_id, record in load_unannotated(config.data_path, task).items()
    ]
    save_json(config.output_path, tasks)
    words = {name: escape(getattr(task.span_words, name), {'"': "&quot;"}) for name in LABELS}
    save_text(interface, Template(INTERFACE).safe_substitute(words))
    print(f"{len(tasks)} tasks: {config.output_path}; the project's labeling interface: {interface}")


def write_records(task: Task, config: LabelStudioConfig) -> None:
    check_output(config.output_path)
    records = load_unannotated(config.data_path, task)
    responses = {record_id: task.response(record) for record_id, record in records.items()}
    found = read_export(config.export, responses, config.offsets, task.span_words)
    if not found:
        raise InputError(f"{config.export}: holds no finished annotation; export again when people have submitted some")
    annotated = {key: annotated_record(task, records[key], found[key], config.spans) for key in records if key in found}
    save_records(config.output_path, records.like(annotated))
    report: dict[str, Any] = {"records": len(annotated), "without": len(records) - len(annotated)}
    if config.spans:
        report["agreement"] = agreement(found, responses)
        report["found_elsewhere"] = sum(elsewhere(task, record) for record in annotated.values())
    save_json(f"{config.output_path}.report.json", report)
    print(f"{len(annotated)} of {len(records)} records annotated by people: {config.output_path}")
    if misplaced := report.get("found_elsewhere"):
        print(f"warning: {misplaced} marks label another place, where the same words stand earlier")
    data = f"--data_path {quoted(config.output_path)}"
    if config.spans:
        say_next(f"{stage_command('reward_model', task)} {data} --output_dir REWARD_MODEL")
    else:
        say_next(f"{stage_command('annotation', task)} --prompt human_feedback {data}")


@command
def main() -> None:
    chosen, config = parse(TaskConfig, LabelStudioConfig)
    (write_records if config.export else write_tasks)(get_task(chosen.task), config)


if __name__ == "__main__":
    main()
