"""Does a reward model trained on synthetic critiques agree with people? The paper's third open question, in small.

    python benchmarks/human_critiques.py --data_path qa_feedback_100.jsonl --output_dir runs/human_critiques

The same answers have three sets of feedback. *People* marked wrong passages by character offset. The *program* is
``load_critic("programmatic", "ultrafeedback")``. *Chance* has the people's critique and as many passages, moved to
other sentences. On each set reward models are trained in two folds, and give feedback on the answers that they did not
see. Their tokens are compared with the people's marks and with the program's. A killed run can be started again: a
finished fold is not trained again.
"""

from __future__ import annotations

import random
import re
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.alignment import by_offsets
from benchmarks.pages import check_page, markdown_table, page_setting, write_section
from benchmarks.real_posts import run_script
from nl_reward_model.measures.paired_feedback import PairedFeedback, pair_feedback
from nl_reward_model.measures.token_metrics import PLACEMENTS, confusion, f1, labels, precision, recall
from text2grad.configs import parse, setting
from text2grad.critics import load_critic
from text2grad.critics.programs.english import sentences, words
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.models import load_tokenizer
from text2grad.records import load_json, save_json
from text2grad.statistics import Estimate, bootstrap, paired_bootstrap
from text2grad.tasks import Interval, Record, get_task

TASK = get_task("ultrafeedback")
STAGE = "nl_reward_model/ultrafeedback"
SOURCES = {"people": "people's critiques", "program": "the program's critiques", "chance": "critiques by chance"}
POOR = 2
"""The row and column of −1 in ``token_metrics.confusion``."""


@dataclass
class HumanCritiquesConfig:
    data_path: str = setting(
        "", "answers with marked spans, JSONL: question, response, spans, missing_info", "--dataset_path", "--data"
    )
    output_dir: str = setting("", "folder of reward models, their feedback and the figures", "--save_dir")
    model: str = setting("smollm2", "the model that the reward models start from", "--model_path")
    epochs: float = setting(2.0, "passes over a fold's answers")
    max_prompt_tokens: int = setting(400, "tokens of question and answer", "--prompt_max_length")
    max_length: int = setting(900, "tokens of question, answer and feedback")
    limit: int = setting(0, "use only so many answers, the first ones; 0 for all")
    seed: int = setting(42, "seed of the folds, of chance's marks and of the training")
    page: str = page_setting("human_critiques")

    def check(self) -> None:
        for name in ("data_path", "output_dir"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing; --help lists the settings")
        check_page(self.page, "human_critiques")


@dataclass(frozen=True)
class MarkedAnswer:
    """An answer and what people marked in it: character intervals with the kind of the fault, in order."""

    id: str
    question: str
    text: str
    marks: list[Interval]
    kinds: list[str]
    missing: bool


# The three sets of feedback


def load_answers(path: str) -> list[MarkedAnswer]:
    """The answers of a file.

    Raises:
        InputError: a row that lacks a field, or marks something that the answer does not have.
    """
    answers = []
    for number, row in enumerate(load_json(path)):
        lacking = {"id", "question", "response", "spans"} - set(row if isinstance(row, dict) else ())
        if lacking:
            raise InputError(
                f"{path}: row {number} lacks {', '.join(sorted(lacking))}; see benchmarks/human_critiques.md"
            )
        spans = sorted(row["spans"], key=lambda span: (span["start"], span["end"]))
        for span in spans:
            if not row["response"][span["start"] : span["end"]].strip():
                raise InputError(
                    f"{path}: row {number} marks {span['start']} to {span['end']}, which holds no text; correct it"
                )
        marks = [(span["start"], span["end"]) for span in spans]
        kinds = [span.get("type", "wrong") for span in spans]
        answers.append(
            MarkedAnswer(row["id"], row["question"], row["response"], marks, kinds, any(row.get("missing_info", [])))
        )
    return answers


def sentence_intervals(text: str) -> list[Interval]:
    """The sentences as character intervals, with their punctuation and without white space around them."""
    found = words(text)
    intervals, begin = [], 0
    for _, last, _ in sentences(text, found):
        limit = found[last].start if last < len(found) else len(text)
        end = found[last - 1].end
        while end < limit and not text[end].isspace():
            end += 1
        begin += len(text[begin:end]) - len(text[begin:end].lstrip())
        intervals.append((begin, end))
        begin = end
    return intervals


def by_people(answer: MarkedAnswer, marks: Sequence[Interval] | None = None) -> Feedback:
    """What people marked is poor; sentences that no mark touches are good; the critique names the kinds of fault.

    Args:
        marks: others in place of the people's.
    """
    marks = answer.marks if marks is None else marks
    untouched = [place for place in sentence_intervals(answer.text) if not any(_touch(place, mark) for mark in marks)]
    counted = [f"{kind}: {count} passage{'s' * (count > 1)}." for kind, count in Counter(answer.kinds).most_common()]
    missing = ["Something that was asked for is missing."] if answer.missing else []
    critique = " ".join([*counted, *missing]) or "Nothing is wrong."
    good, poor = ([answer.text[slice(*place)] for place in places] for places in (untouched, marks))
    return Feedback(critique, good, poor)


def by_chance(answer: MarkedAnswer, seed: int, draw: int = 0) -> Feedback:
    """The people's critique with as many marks, laid on other sentences (:func:`moved`)."""
    return by_people(answer, moved(answer.text, answer.marks, random.Random(f"{seed} {answer.id} {draw}")))


def moved(text: str, marks: Sequence[Interval], rng: random.Random) -> list[Interval]:
    """As many marks over as many sentences, at other places.

    The sentences that one mark joins, with all marks in them, are a block; the blocks and the unmarked sentences come
    in random order; each mark keeps its place within its block, to the word.
    """
    places = sentence_intervals(text)
    blocks: list[list[int]] = []
    for number, place in enumerate(places):
        joined = number and any(_touch(places[number - 1], mark) and _touch(place, mark) for mark in marks)
        blocks = [*blocks[:-1], [*blocks[-1], number]] if joined else [*blocks, [number]]
    result, position = [], 0
    for block in rng.sample(blocks, len(blocks)):
        old = _words(text, places[block[0]][0], places[block[-1]][1])
        new = _words(text, places[position][0], places[position + len(block) - 1][1])
        position += len(block)
        for mark in marks:
            inside = [index for index, word in enumerate(old) if _touch(word, mark)]
            if inside:
                first = min(round(inside[0] * len(new) / len(old)), len(new) - 1)
                last = max(first, round((inside[-1] + 1) * len(new) / len(old)) - 1)
                result.append((new[first][0], new[last][1]))
    return sorted(result)


def _touch(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _words(text: str, start: int, end: int) -> list[Interval]:
    return [match.span() for match in re.compile(r"\S+").finditer(text, start, end)]


def feedback_of(answers: Sequence[MarkedAnswer], seed: int) -> dict[str, dict[str, Feedback]]:
    """Each source's judgement of each answer, by the answer's id."""
    program = load_critic("programmatic", TASK)([a.question for a in answers], [a.text for a in answers])
    by_program: dict[str, Feedback] = {}
    for answer, item in zip(answers, program, strict=True):
        if isinstance(item, FeedbackError):
            raise InputError(f"answer {answer.id}: the program cannot judge it: {item}; remove it")
        by_program[answer.id] = item
    return {
        "people": {answer.id: by_people(answer) for answer in answers},
        "program": by_program,
        "chance": {answer.id: by_chance(answer, seed) for answer in answers},
    }


def annotated_record(answer: MarkedAnswer, feedback: Feedback, source: str) -> Record:
    """An annotated record of stage 2."""
    bare = TASK.with_response({"prompt": answer.question, "prompt_id": answer.id}, answer.text)
    return TASK.with_feedback(bare, feedback, {"annotator": source})


# Training and judging


def folds(answers: Sequence[MarkedAnswer], seed: int) -> list[list[MarkedAnswer]]:
    """Two halves; one question is in one of them alone."""
    questions = list(dict.fromkeys(answer.question for answer in answers))
    random.Random(seed).shuffle(questions)
    first = set(questions[: len(questions) // 2])
    return [[a for a in answers if a.question in first], [a for a in answers if a.question not in first]]


def train_and_infer(folder: Path, training: list[Record], held_out: list[Record], config: HumanCritiquesConfig) -> None:
    """Train a reward model on ``training`` and let it judge ``held_out``: ``judged.json``, and at last ``cost.json``.

    Raises:
        InputError: the folder holds a fold of other data or settings.
    """
    settings = {name: getattr(config, name) for name in ("model", "epochs", "max_prompt_tokens", "max_length", "seed")}
    cost = folder / "cost.json"
    data = {"training": training, "held_out": held_out}
    if cost.is_file():
        if load_json(cost)["settings"] != settings or any(load_json(folder / f"{n}.json") != data[n] for n in data):
            raise InputError(f"{folder}: holds a fold of other data or settings; choose another --output_dir")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in data.items():
        save_json(folder / f"{name}.json", records)
    begun = _processor_seconds()
    run_script(f"{STAGE}/train_rm.py", "--config", f"{STAGE}/config_small.yaml", "--model", config.model,
        "--prompt", "no_cot", "--data_path", folder / "training.json", "--output_dir", folder / "reward_model",
        "--seed", config.seed, "--prompt_max_length", config.max_prompt_tokens, "--max_length", config.max_length,
        "--num_train_epochs", config.epochs, "--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 1,
        "--gradient_checkpointing", "false", "--validation_share", 0, "--judge_records", 0, "--report_to", "none",
        "--save_strategy", "no", "--load_best_model_at_end", "false")  # fmt: skip
    learnt = _processor_seconds()
    run_script(f"{STAGE}/evaluation/2_infer.py", "--model_path", folder / "reward_model", "--constrained", "quotes",
        "--batch_size", 25, "--dataset_path", folder / "held_out.json",
        "--output_file", folder / "judged.json")  # fmt: skip
    minutes = {"training": (learnt - begun) / 60, "judging": (_processor_seconds() - learnt) / 60}
    save_json(cost, {"settings": settings, "minutes": minutes})


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged_by(
    source: str, feedback: Mapping[str, Feedback], parts: list[list[MarkedAnswer]], config: HumanCritiquesConfig
) -> dict:
    """What reward models trained on ``feedback`` wrote of the answers that they did not see: ``predicted``, by id."""
    predicted: dict[str, Any] = {}
    for number, held_out in enumerate(parts):
        folder = Path(config.output_dir) / f"{source}-fold{number}"
        training = [annotated_record(answer, feedback[answer.id], source) for answer in parts[1 - number]]
        bare = [TASK.training_prompts(annotated_record(answer, feedback[answer.id], source)) for answer in held_out]
        train_and_infer(folder, training, bare, config)
        rows = load_json(folder / "judged.json")
        predicted |= {row["prompt_id"]: row["predicted"] for row in rows}
    return predicted


# Agreement


def auc(sums: np.ndarray) -> np.ndarray:
    """The chance that a marked token has a lower label than an unmarked one, ties counting half; 0.5 says nothing.

    Fair to any share of marked tokens. Where a judge calls tokens poor or nothing, it is the mean of the share of
    marked tokens called poor and of unmarked ones not called poor. A judgement that cannot be read labels all 0.

    Args:
        sums: counts [..., 12] of ``token_metrics.confusion``; the truth has −1 and others.
    """
    by_label = sums.reshape(*sums.shape[:-1], 3, 4)
    levels = np.stack([by_label[..., 2], by_label[..., 1] + by_label[..., 3], by_label[..., 0]], axis=-1)  # −1, 0, +1
    marked, unmarked = levels[..., POOR, :], levels[..., :POOR, :].sum(-2)
    above = unmarked[..., ::-1].cumsum(-1)[..., ::-1] - unmarked
    with np.errstate(divide="ignore", invalid="ignore"):
        return (marked * (above + unmarked / 2)).sum(-1) / (marked.sum(-1) * unmarked.sum(-1))


def called_poor(sums: np.ndarray) -> np.ndarray:
    """The share of all tokens that a judge calls poor."""
    return sums.reshape(*sums.shape[:-1], 3, 4)[..., POOR].sum(-1) / sums.sum(-1)


def within(rows: np.ndarray) -> np.ndarray:
    """[answers, 12] -> [answers, 2]: the AUC of each answer by itself and 1; zeros where all or none of it is marked.

    Only where the marks lie counts here, not which answers have many.
    """
    each = auc(rows)
    defined = ~np.isnan(each)
    return np.stack([np.where(defined, each, 0), defined], axis=-1)


MEASURES = {"precision": precision(POOR), "recall": recall(POOR), "F1": f1(POOR), "AUC": auc}
WITHIN = "AUC within an answer"


class Agreement:
    """Counts of judged tokens against the people's marks and against the program's, answer by answer."""

    def __init__(self, answers: Sequence[MarkedAnswer], feedback: dict[str, dict[str, Feedback]], tokenizer):
        self.tokenizer, self.feedback = tokenizer, feedback
        self.truth: dict[str, list[np.ndarray]] = {"people": [], "program": []}
        self.items: list[PairedFeedback] = []
        for answer in answers:
            row = annotated_record(answer, feedback["people"][answer.id], "people")
            item = pair_feedback({answer.id: row}, TASK, tokenizer)[0]
            self.items.append(item)
            self.truth["people"].append(np.array(by_offsets(item.ids, tokenizer, answer.marks), dtype=int))
            program = labels(item, feedback["program"][answer.id], TASK, tokenizer)
            self.truth["program"].append(np.minimum(program, 0))

    def counts(self, predicted: Mapping[str, Feedback | None]) -> dict[str, np.ndarray]:
        """[answers, 12] for each truth, of one judge's feedback by answer id; None for what cannot be read."""
        found = [labels(item, predicted[item.record_id], TASK, self.tokenizer) for item in self.items]
        return {
            name: np.array([confusion(t, p).ravel() for t, p in zip(truth, found, strict=True)], dtype=float)
            for name, truth in self.truth.items()
        }


def without_training(
    answers: Sequence[MarkedAnswer], agreement: Agreement, seed: int
) -> dict[str, dict[str, np.ndarray]]:
    """Counts of the judges that learn nothing; for chance, the mean of several placements."""

    def of_sentences(first: int) -> dict[str, Feedback]:
        return {
            a.id: Feedback("-", poor=[a.text[slice(*place)] for place in sentence_intervals(a.text)[first:]])
            for a in answers
        }

    draws = [agreement.counts({a.id: by_chance(a, seed, draw) for a in answers}) for draw in range(PLACEMENTS)]
    return {
        "every sentence is poor": agreement.counts(of_sentences(0)),
        "every sentence but the first": agreement.counts(of_sentences(1)),
        "people's quotes": agreement.counts(agreement.feedback["people"]),
        "the program": agreement.counts(agreement.feedback["program"]),
        f"chance ({PLACEMENTS} placements)": {name: np.mean([d[name] for d in draws], axis=0) for name in draws[0]},
    }


def counts_of_trained_models(
    parts: list[list[MarkedAnswer]], agreement: Agreement, config: HumanCritiquesConfig
) -> tuple[dict, dict[str, float]]:
    """Counts of the three reward models on answers that they did not see, and the share of readable judgements."""
    counts, readable = {}, {}
    for source, label in SOURCES.items():
        written = judged_by(source, agreement.feedback[source], parts, config)
        readable[label] = fmean(value is not None for value in written.values())
        predicted = {key: value and TASK.fields.from_dict(value) for key, value in written.items()}
        counts[f"trained on {label}"] = agreement.counts(predicted)
    return counts, readable


# The page


def agreement_estimates(counts: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Estimates by critic, by truth, by measure."""
    return {
        judge: {
            truth: {"called poor": bootstrap(rows, called_poor)}
            | {name: bootstrap(rows, measure) for name, measure in MEASURES.items()}
            | {WITHIN: bootstrap(within(rows))}
            for truth, rows in both.items()
        }
        for judge, both in counts.items()
    }


def agreement_table(found: Mapping[str, Mapping[str, Mapping[str, Estimate]]], truth: str) -> str:
    header = [
        f"poor tokens, against {'people' if truth == 'people' else 'the program'}",
        "called poor",
        *MEASURES,
        WITHIN,
    ]
    rows = [
        [judge, *(_percent(e) if name == "called poor" else _shown(e) for name, e in both[truth].items())]
        for judge, both in found.items()
    ]
    return markdown_table(header, rows)


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%}".replace("%", " %")


def _shown(estimate: Estimate) -> str:
    if np.isnan(estimate.value):
        return "–"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def differences(counts: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Estimate]:
    """AUC within an answer, against people, of each reward model less that of chance's, on the same answers."""
    rows = {source: within(counts[f"trained on {label}"]["people"]) for source, label in SOURCES.items()}
    return {source: paired_bootstrap(rows[source], rows["chance"]) for source in ("people", "program")}


def page_section(counts: dict, readable: Mapping[str, float], minutes: Mapping[str, float], answers: int) -> str:
    found, gains = agreement_estimates(counts), differences(counts)
    share = ", ".join(f"{label} {value:.0%}".replace("%", " %") for label, value in readable.items())
    return "\n\n".join(
        [
            agreement_table(found, "people"),
            agreement_table(found, "program"),
            "AUC within an answer against people, minus that of the model trained on critiques by chance: "
            f"{_signed(gains['people'])} if trained on people's, "
            f"{_signed(gains['program'])} if trained on the program's.",
            f"{answers} answers. Readable feedback: {share}. Processor time: {minutes['training']:.0f} minutes of "
            f"training and {minutes['judging']:.0f} minutes of inference, on one core.",
        ]
    )


def _signed(estimate: Estimate) -> str:
    ends = f"[{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return f"{estimate.value:+.2f} {ends}".replace("-", "−")


@command
def main() -> None:
    config = parse(HumanCritiquesConfig)
    config.check()
    answers = load_answers(config.data_path)[: config.limit or None]
    if len({answer.question for answer in answers}) < 2:
        raise InputError(f"{config.data_path}: holds fewer than two questions; two folds need one each")
    output = Path(config.output_dir)
    agreement = Agreement(answers, feedback_of(answers, config.seed), load_tokenizer(config.model))
    counts = without_training(answers, agreement, config.seed)
    print(agreement_table(agreement_estimates(counts), "people"), flush=True)
    learned, readable = counts_of_trained_models(folds(answers, config.seed), agreement, config)
    counts |= learned
    costs = [load_json(path)["minutes"] for path in sorted(output.glob("*-fold?/cost.json"))]
    minutes = {name: sum(cost[name] for cost in costs) for name in ("training", "judging")}
    found = agreement_estimates(counts)
    values = {j: {t: {m: e.to_dict() for m, e in ms.items()} for t, ms in both.items()} for j, both in found.items()}
    gains = {source: estimate.to_dict() for source, estimate in differences(counts).items()}
    save_json(output / "figures.json", {"agreement": values, "gains": gains, "readable": readable, "minutes": minutes})
    text = page_section(counts, readable, minutes, len(answers))
    print(text)
    write_section(config.page, "human_critiques", text)


if __name__ == "__main__":
    main()
