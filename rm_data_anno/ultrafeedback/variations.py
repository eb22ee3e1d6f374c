"""Make thousands of annotated answers out of few: excerpts with one fault that the rules see, or with none.

python rm_data_anno/ultrafeedback/variations.py --data_path responses.json --output_path varied.json
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from rm_data_anno.ultrafeedback.injections import INJECTIONS, Injected, pieces
from text2grad.configs import check_choices, check_given, check_positive, parse, setting
from text2grad.critics.programs.english import words
from text2grad.critics.programs.ultrafeedback.critic import AnswerCritic, WorkedAnswerCritic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, check_output, load_records, save_records
from text2grad.tasks import Record, get_task

_DEMANDS = (
    "Answer in exactly {number} sentences.",
    "Write at most {length} words.",
    "Answer in at most {number} sentences.",
    "Reply in all caps.",
    "Answer in bullet points.",
    'Start with "Well".',
    "Write at least {length} words.",
)
_WITH_DEMAND = 0.4  # share of the requests after the first round that get one
_UNCHANGED = 2  # how often excerpts stay as they are, a kind of change counting once
_ATTEMPTS = 20  # for each answer
_OTHERS = 8  # answers to other requests that something may come from


@dataclass(kw_only=True)
class AnswerVariationsConfig:
    data_path: str = setting("", "requests with answers", "--dataset_path", "--input_file")
    output_path: str = setting("", "annotated records, ready for stage 2", "--output_file", "--output")
    rounds: int = setting(4, "variations of each request: the first as it is, others may demand a form")
    per_prompt: int = setting(8, "answers to each variation, in a row of the file")
    most_sentences: int = setting(4, "sentences or list items of an excerpt")
    critique_style: Literal["worked", "plain"] = setting(
        "worked", "worked goes through the sentences, which a small model learns from; plain sums up"
    )
    seed: int = setting(0, "of all that is drawn")


def variations(
    records: Mapping[str, Record],
    rounds: int,
    per_prompt: int,
    most_sentences: int = 4,
    seed: int = 0,
    critique_style: str = "worked",
) -> tuple[dict[str, Record], Counter[str]]:
    """Annotated records by id, ``PROMPT~ROUND#NUMBER``, and how many faults of each kind the rules did not see.

    Each kind of fault comes as often as the answers allow.

    The rules annotate every one of them. A fault is kept where they blame some of it; ``annotation.wrong`` says which
    characters it has.

    Raises:
        InputError: fewer than two requests, or an answer without words.
    """
    task, rng = get_task("ultrafeedback"), random.Random(seed)
    critic = (WorkedAnswerCritic if critique_style == "worked" else AnswerCritic)()
    requests: dict[str, tuple[str, Record, list[str]]] = {}
    for key, record in records.items():
        if not words(task.response(record)):
            raise InputError(f"record {key!r} has an answer without words; remove it")
        requests.setdefault(task.prompt(record), (key, record, []))[2].append(task.response(record))
    if len(requests) < 2:
        raise InputError("one request is not enough; give at least two, since sentences are exchanged between them")
    counts: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    made: dict[str, Record] = {}
    for number, (request, (key, record, own)) in product(range(rounds), requests.items()):
        strangers = rng.sample([other for other in requests if other != request], min(_OTHERS, len(requests) - 1))
        others = [text for stranger in strangers for text in requests[stranger][2]]
        asked = request if not number or rng.random() >= _WITH_DEMAND else _demanding(request, rng)
        seen: set[str] = set()
        for _ in range(_ATTEMPTS * per_prompt):
            if len(seen) == per_prompt:
                break
            kind = min(
                INJECTIONS, key=lambda kind: (counts[kind] / (1 + _UNCHANGED * (kind == "unchanged")), rng.random())
            )
            counts[kind] += 1  # tried: what the rules do not see here gives way to other kinds
            found = INJECTIONS[kind](asked, _excerpt(rng.choice(own), most_sentences, rng), others, rng)
            if found is None or not words(found.text) or found.text in seen:
                continue
            feedback = critic.feedback_on(asked, found.text)
            if found.wrong is not None and not _blamed(feedback, found):
                unseen[found.kind] += 1
                continue
            seen.add(found.text)
            name = f"{key}~{number}#{len(seen) - 1}"
            annotation = {
                "source": "variations",
                "kind": found.kind,
                "wrong": list(found.wrong) if found.wrong else None,
            }
            made[name] = task.with_feedback(_record(record, name, asked, found.text), feedback, annotation)
    return made, unseen


def _demanding(request: str, rng: random.Random) -> str:
    demand = rng.choice(_DEMANDS).format(number=rng.choice(["two", "three"]), length=rng.choice([20, 30, 40, 60]))
    return f"{request.rstrip()} {demand}"


def _excerpt(text: str, most: int, rng: random.Random) -> Sequence[str]:
    """Some sentences in a row; from the beginning, every other time."""
    parts = pieces(text)
    length = rng.randint(1, min(most, len(parts)))
    start = rng.choice([0, rng.randint(0, len(parts) - length)])
    return parts[start : start + length]


def _blamed(feedback: Feedback, found: Injected) -> bool:
    """Whether some of what was made wrong is in a poor span."""
    assert found.wrong is not None
    start, end = found.wrong
    return any(a < end and start < b for quote in feedback.poor for a, b in ground(quote, found.text))


def _record(record: Record, name: str, request: str, answer: str) -> Record:
    """As UltraFeedback has it; scores and a person's critique belong to the answer that it was made from."""
    gone = ("id", "annotation", "score", "score_chosen", "score_rejected", "is_chosen", "critique")
    kept = {field: value for field, value in record.items() if field not in gone}
    return get_task("ultrafeedback").with_response({**kept, "prompt_id": name, "id": name, "prompt": request}, answer)


@command
def main() -> None:
    config = parse(AnswerVariationsConfig)
    check_choices(config)
    check_given(config, "data_path", "output_path")
    check_positive(config, "rounds", "per_prompt", "most_sentences")
    check_output(config.output_path)
    made, unseen = variations(
        load_records(config.data_path, get_task("ultrafeedback")),
        config.rounds,
        config.per_prompt,
        config.most_sentences,
        config.seed,
        config.critique_style,
    )
    save_records(config.output_path, Records(made, Path(config.output_path), keyed=False))
    kinds = Counter(record["annotation"]["kind"] for record in made.values())
    print(
        f"{config.output_path}: {len(made)} answers to {len({record['prompt'] for record in made.values()})} requests"
    )
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print("left out, since the rules did not see the fault: ", end="")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(unseen.items())) or "none")


if __name__ == "__main__":
    main()
