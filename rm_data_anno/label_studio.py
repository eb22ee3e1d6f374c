"""People as annotators: responses to Label Studio's tasks, and its export back to annotated records.

python rm_data_anno/label_studio.py --task slf5k --data_path responses.json --output_path tasks.json
python rm_data_anno/label_studio.py --task slf5k --data_path responses.json --export export.json \\
    --output_path annotated.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rm_data_anno.text_offsets import Convention, chosen_convention, place
from text2grad.configs import TaskConfig, parse, setting
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.records import Records, check_output, load_json, load_records, save_json, save_records, save_text
from text2grad.safety.gate import fault, shown
from text2grad.safety.schema import Form, checked
from text2grad.statistics import fleiss_kappa
from text2grad.tasks import Interval, Task, get_task
from text2grad.tasks.commands import say_next, stage_command
from text2grad.token_rewards import span_intervals

LABELS = ("good", "poor")
INTERFACE = """<View>
  <Header value="Prompt"/>
  <Text name="prompt" value="$prompt"/>
  <Header value="Response: mark what is good and what is poor"/>
  <Labels name="span" toName="response">
    <Label value="good" background="#2d5f8c"/>
    <Label value="poor" background="#a3304a"/>
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
"""What annotators see: paste it as the project's labeling interface."""
_STARS = 5


@dataclass(kw_only=True)
class LabelStudioConfig:
    """To tasks, or with ``export`` back to records."""

    data_path: str = setting(MISSING, "responses, in the task's format", "--dataset_path", "--responses")
    output_path: str = setting(MISSING, "tasks to import; with --export, annotated records", "--output_file")
    export: str = setting("", "Label Studio's export, as JSON")
    spans: bool = setting(True, "false: critiques alone were written; annotate.py --prompt human_feedback finds spans")
    offsets: Literal["auto", "code_points", "utf16"] = setting("auto", "what the export's offsets count")
    dispute_below: float = setting(0.5, "span overlap of two annotators below which a record goes to a third person")


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


class _Data(Form):
    id: str
    response: str | None = None


class _ExportedTask(Form):
    """One task of Label Studio's JSON export, as far as it is read."""

    data: _Data
    annotations: list[_Annotation] | None = None


@dataclass
class PersonsAnnotation:
    """What one annotator said of one response.

    Attributes:
        decides: marked as ground truth; it settles what others disagree on.
        score: the verdict on the whole, in −1..1: one star is −1, five are +1.
    """

    annotator: str
    critique: str
    places: list[tuple[str, int, int]] = field(default_factory=list)
    decides: bool = False
    missing: list[str] = field(default_factory=list)
    score: float | None = None

    def labels(self, length: int) -> list[str]:
        """The label of each character; poor where both were marked, as in training."""
        found = [""] * length
        for label in LABELS:
            for start, end in (mark[1:] for mark in self.places if mark[0] == label):
                found[start:end] = [label] * (end - start)
        return found


def to_tasks(records: Mapping[str, Any], task: Task) -> list[dict[str, Any]]:
    """One task of Label Studio per record; its id is what brings the annotation back."""
    return [
        {"data": {"id": record_id, "prompt": task.prompt(record), "response": task.response(record)}}
        for record_id, record in records.items()
    ]


def read_export(
    path: str | Path, responses: Mapping[str, str], offsets: str = "auto"
) -> dict[str, list[PersonsAnnotation]]:
    """The finished annotations of each record, one of each person, with exact intervals of its response.

    Raises:
        InputError: a task of no such record, an annotation without critique, offsets that do not fit their text.
    """
    value = load_json(path)
    if not isinstance(value, list):
        raise InputError(f"{path}: holds {type(value).__name__}; export the project as JSON (not JSON-MIN)")
    if problem := fault(value, finite=False):
        raise InputError(f"{path}: {problem}; correct it there")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, item in enumerate(value):
        checked(_ExportedTask, item, f"{path}: task {number}")
        record_id = item["data"]["id"]
        if record_id not in responses:
            raise InputError(f"{path}: task {number} is of record {shown(record_id)}, which --data_path does not hold")
        if item["data"].get("response") not in (None, responses[record_id]):
            raise InputError(f"{path}: record {record_id!r} has another response than in --data_path; give that file")
        rows += [(record_id, row) for row in _votes(item.get("annotations") or [], f"{path}: record {record_id!r}")]
    marked = [(responses[record_id], each) for record_id, row in rows for each in _values(row, "labels")]
    convention = chosen_convention(marked, offsets, str(path))
    found: dict[str, list[PersonsAnnotation]] = {}
    for record_id, row in rows:
        found.setdefault(record_id, []).append(_annotation(row, responses[record_id], convention, path, record_id))
    return found


def _votes(annotations: Sequence[Mapping[str, Any]], where: str) -> list[Mapping[str, Any]]:
    """The annotation of each person that counts: the last submitted, or the last that is marked as ground truth."""
    votes: dict[str, Mapping[str, Any]] = {}
    finished = [row for row in annotations if not row.get("was_cancelled")]
    for row in sorted(finished, key=lambda row: row.get("updated_at") or ""):
        who = _who(row)
        if not who and len(finished) > 1:
            raise InputError(f"{where}, annotation {row.get('id')}: completed_by is missing; say who made it")
        if row.get("ground_truth") or not (who in votes and votes[who].get("ground_truth")):
            votes[who] = row
    return list(votes.values())


def _who(row: Mapping[str, Any]) -> str:
    """Whose annotation it is; empty where the export does not say."""
    who = row.get("completed_by")
    if isinstance(who, Mapping):
        who = who.get("email") or who.get("id")
    return "" if who is None else str(who)


def _annotation(
    row: Mapping[str, Any], response: str, convention: Convention, path: str | Path, record_id: str
) -> PersonsAnnotation:
    where = f"{path}: record {record_id!r}, annotation {row.get('id')}"
    missing = _texts(row, of_missing=True)
    critique = " ".join(_texts(row, of_missing=False))
    if not critique:
        raise InputError(f"{where}: has no critique; ask its annotator for one, or delete the annotation")
    person = PersonsAnnotation(_who(row), critique, [], bool(row.get("ground_truth")), missing)
    for value in _values(row, "rating"):
        if stars := value.get("rating"):
            person.score = 2 * (stars - 1) / (_STARS - 1) - 1
    for value in _values(row, "labels"):
        interval = place(value, response, convention)
        for label in value.get("labels") or []:
            if label not in LABELS:
                raise InputError(f"{where}: marks a span {shown(label)}; this project's labels are good and poor")
            person.places.append((label, *interval))
    return person


def _texts(row: Mapping[str, Any], of_missing: bool) -> list[str]:
    """What was typed into the field of missing things, or into any other."""
    typed: list[str] = []
    for each in row.get("result") or []:
        if each.get("type") == "textarea" and each.get("value") and (each.get("from_name") == "missing") == of_missing:
            text = each["value"].get("text") or []
            typed += [text] if isinstance(text, str) else text
    return [text.strip() for text in typed if text.strip()]


def _values(row: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each["value"] for each in row.get("result") or [] if each.get("type") == kind and each.get("value")]


def adjudicated(people: Sequence[PersonsAnnotation], response: str) -> PersonsAnnotation:
    """One annotation of several: the deciding one; else per character what more than half of them said, all that any
    of them misses, and the mean verdict."""
    deciding = [person for person in people if person.decides]
    if deciding or len(people) == 1:
        return (deciding or list(people))[-1]
    columns = zip(*(person.labels(len(response)) for person in people), strict=True)
    winners = [Counter(column).most_common(1)[0] for column in columns]
    labels = [label if 2 * count > len(people) else "" for label, count in winners]
    critiques = dict.fromkeys(person.critique for person in people)
    missing = dict.fromkeys(text for person in people for text in person.missing)
    scores = [person.score for person in people if person.score is not None]
    return PersonsAnnotation(
        "majority",
        "\n".join(critiques),
        list(_runs(labels, response)),
        missing=list(missing),
        score=sum(scores) / len(scores) if scores else None,
    )


def _runs(labels: Sequence[str], response: str) -> Iterable[tuple[str, int, int]]:
    """Stretches of one label, without white space at their ends; those without a letter or digit are left out."""
    start = 0
    for end in range(1, len(labels) + 1):
        if end < len(labels) and labels[end] == labels[start]:
            continue
        piece = response[start:end]
        if labels[start] and any(char.isalnum() for char in piece):
            yield labels[start], start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
        start = end


def overlap(first: PersonsAnnotation, second: PersonsAnnotation, length: int) -> float:
    """F1 of two annotators' labelled characters; 1 where neither marked any."""
    a, b = first.labels(length), second.labels(length)
    marked = sum(map(bool, a)) + sum(map(bool, b))
    return 2 * sum(x == y != "" for x, y in zip(a, b, strict=True)) / marked if marked else 1.0


def agreement(found: Mapping[str, Sequence[PersonsAnnotation]], responses: Mapping[str, str]) -> dict[str, Any]:
    """Fleiss' kappa of the characters' labels, and the mean span overlap of two annotators, where several answered.

    White space does not count. Kappa is over the records that the most usual number of people annotated.
    """
    several = {record_id: people for record_id, people in found.items() if len(people) > 1}
    if not several:
        return {"records": 0}
    usual = Counter(map(len, several.values())).most_common(1)[0][0]
    counts = []
    for record_id, people in several.items():
        if len(people) == usual:
            columns = zip(*(person.labels(len(responses[record_id])) for person in people), strict=True)
            counts += [
                [column.count(label) for label in ("good", "poor", "")]
                for char, column in zip(responses[record_id], columns, strict=True)
                if not char.isspace()
            ]
    kappa = fleiss_kappa(counts)
    pairs = [
        overlap(*pair, len(responses[record_id]))
        for record_id, people in several.items()
        for pair in combinations(people, 2)
    ]
    return {
        "records": len(several),
        "annotators_each": usual,
        "fleiss_kappa": None if kappa != kappa else round(kappa, 4),
        "span_overlap": round(sum(pairs) / len(pairs), 4),
    }


def annotated_record(task: Task, record: dict, people: Sequence[PersonsAnnotation], spans: bool) -> dict:
    """The record with the people's feedback; without spans, their critique alone for annotate.py."""
    response = task.response(record)
    final = adjudicated(people, response)
    if not spans:
        return {**record, task.human_feedback_field: final.critique}
    places = sorted(final.places, key=lambda mark: mark[1:])
    quotes = {name: list(dict.fromkeys(response[a:b] for label, a, b in places if label == name)) for name in LABELS}
    poor = quotes["poor"]
    good = [quote for quote in quotes["good"] if quote not in poor]
    feedback = Feedback(final.critique, good, poor, missing=final.missing, score=final.score)
    annotation = {
        "annotator": "people",
        "people": [person.annotator for person in people],
        "adjudicated": "decided" if final.decides else "majority" if len(people) > 1 else "alone",
        "spans": [{"label": label, "start": start, "end": end} for label, start, end in places],
        "validation": {"offered": len(places), "corrected": 0},
    }
    return {**task.with_feedback(record, feedback, annotation), task.human_feedback_field: final.critique}


def elsewhere(task: Task, record: dict) -> int:
    """Marked spans that training would look for in another place: a short quote means its first occurrence."""
    feedback = task.feedback(record)
    assert feedback is not None
    poor, good = span_intervals(feedback, task.response(record), task)
    known: dict[str, list[Interval]] = {"poor": poor, "good": good}
    return sum(
        not any(start <= span["start"] and span["end"] <= end for start, end in known[span["label"]])
        for span in record["annotation"]["spans"]
    )


def disputed(
    found: Mapping[str, Sequence[PersonsAnnotation]], records: Records, task: Task, limit: float
) -> list[dict[str, Any]]:
    """Tasks for a person who decides: records whose annotators disagree, each annotation shown as a prediction.

    What that person submits and marks as ground truth settles the record in the next export.
    """
    tasks = []
    for record_id, people in found.items():
        length = len(task.response(records[record_id]))
        if any(person.decides for person in people) or len(people) < 2:
            continue
        if min(overlap(*pair, length) for pair in combinations(people, 2)) >= limit:
            continue
        (item,) = to_tasks({record_id: records[record_id]}, task)
        item["predictions"] = [
            {"model_version": person.annotator, "result": result_of(person, task.response(records[record_id]))}
            for person in people
        ]
        tasks.append(item)
    return tasks


def result_of(person: PersonsAnnotation, response: str) -> list[dict[str, Any]]:
    """An annotation in Label Studio's form, with offsets in code points."""
    names = {"to_name": "response"}
    regions = [
        {"from_name": "span", "type": "labels", **names,
         "value": {"start": start, "end": end, "text": response[start:end], "labels": [label]}}
        for label, start, end in person.places
    ]  # fmt: skip
    typed = [("critique", [person.critique])] + ([("missing", person.missing)] if person.missing else [])
    texts = [{"from_name": name, "type": "textarea", **names, "value": {"text": text}} for name, text in typed]
    stars = [] if person.score is None else [round((person.score + 1) / 2 * (_STARS - 1)) + 1]
    ratings = [{"from_name": "verdict", "type": "rating", **names, "value": {"rating": count}} for count in stars]
    return [*regions, *texts, *ratings]


def write_tasks(task: Task, config: LabelStudioConfig) -> None:
    interface = Path(config.output_path).with_suffix(".interface.xml")
    check_output(config.output_path)
    check_output(interface)
    tasks = to_tasks(load_records(config.data_path, task), task)
    save_json(config.output_path, tasks)
    save_text(interface, INTERFACE)
    print(f"{len(tasks)} tasks: {config.output_path}; the project's labeling interface: {interface}")


def write_records(task: Task, config: LabelStudioConfig) -> None:
    check_output(config.output_path)
    records = load_records(config.data_path, task)
    responses = {record_id: task.response(record) for record_id, record in records.items()}
    found = read_export(config.export, responses, config.offsets)
    if not found:
        raise InputError(f"{config.export}: holds no finished annotation; export again when people have submitted some")
    annotated = {key: annotated_record(task, records[key], found[key], config.spans) for key in records if key in found}
    save_records(config.output_path, records.like(annotated))
    open_cases = disputed(found, records, task, config.dispute_below) if config.spans else []
    report: dict[str, Any] = {"records": len(annotated), "without": len(records) - len(annotated)}
    if config.spans:
        report |= {"agreement": agreement(found, responses), "disputed": len(open_cases)}
        report["found_elsewhere"] = sum(elsewhere(task, record) for record in annotated.values())
        save_json(f"{config.output_path}.disputed.json", open_cases)
    save_json(f"{config.output_path}.report.json", report)
    print(f"{len(annotated)} of {len(records)} records annotated by people: {config.output_path}\n{report}")
    if config.spans:
        say_next(f"{stage_command('reward_model', task)} --data_path {config.output_path} --output_dir REWARD_MODEL")
    else:
        say_next(f"{stage_command('annotation', task)} --prompt human_feedback --data_path {config.output_path}")


@command
def main() -> None:
    chosen, config = parse(TaskConfig, LabelStudioConfig)
    (write_records if config.export else write_tasks)(get_task(chosen.task), config)


if __name__ == "__main__":
    main()
