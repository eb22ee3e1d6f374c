"""Make annotated summaries whose faults are known to the character, for a reward model to learn where they are.

python rm_data_anno/slf5k/hard_negatives.py --data_path posts.json --output_path hard_negatives.json
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rm_data_anno.slf5k.corruptions import CORRUPTIONS, Spoilt
from text2grad.configs import check_given, check_positive, parse, setting
from text2grad.critics.programs.english import unique_quote
from text2grad.critics.programs.slf5k.critic import SummaryCritic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.records import Records, check_output, load_records, save_records
from text2grad.tasks import Interval, Record, get_task

NAME = "hard_negatives"
_OTHERS = 8
"""Other posts that a foreign sentence may come from."""


@dataclass(kw_only=True)
class HardNegativesConfig:
    data_path: str = setting(
        "", "posts with summaries: ideal_human_summary, generated_summary, or both", "--dataset_path", "--input_file"
    )
    output_path: str = setting("", "annotated records, ready for stage 2", "--output_file", "--output")
    per_post: int = setting(8, "summaries made from each post")
    max_words: int = setting(50, "words beyond this are poor")
    seed: int = setting(0, "of all that is drawn")


def hard_negatives(records: Mapping[str, Record], per_post: int, max_words: int, seed: int) -> dict[str, Record]:
    """Annotated records by id; each kind of change as often as the summaries allow.

    Raises:
        InputError: a post without any summary.
    """
    task, critic = get_task("slf5k"), SummaryCritic(max_words)
    rng = random.Random(seed)
    sources = {key: summaries(record) for key, record in records.items()}
    for key, texts in sources.items():
        if not texts:
            raise InputError(f"record {key!r} has no summary; give it ideal_human_summary or generated_summary")
    made: dict[str, Record] = {}
    counts: Counter[str] = Counter(dict.fromkeys(CORRUPTIONS, 0))
    for key, record in records.items():
        post = task.prompt(record)
        seen: set[str] = set()
        strangers = rng.sample([other for other in sources if other != key], min(_OTHERS, len(sources) - 1))
        others = [text for stranger in strangers for text in sources[stranger]]
        for number in range(per_post):
            spoilt = spoil(post, sources[key], others, counts, seen, rng)
            if spoilt is None:
                break
            counts[spoilt.kind] += 1
            seen.add(spoilt.text)
            kept = {name: value for name, value in record.items() if name not in ("id", "annotation")}
            changed = task.with_response({"id": f"{key}#{number}", **kept}, spoilt.text)
            annotation = {"source": NAME, "kind": spoilt.kind, "wrong": list(spoilt.wrong) if spoilt.wrong else None}
            made[f"{key}#{number}"] = task.with_feedback(
                changed, annotated(spoilt, critic.feedback_on(post, spoilt.text)), annotation
            )
    return made


def summaries(record: Record) -> list[str]:
    """The summaries that a record holds, a person's first."""
    found = (record.get(name) for name in ("ideal_human_summary", "generated_summary"))
    return list(dict.fromkeys(text.strip() for text in found if isinstance(text, str) and text.strip()))


def spoil(
    post: str,
    texts: Sequence[str],
    others: Sequence[str],
    counts: Counter[str],
    seen: set[str],
    rng: random.Random,
) -> Spoilt | None:
    """A new text by the kind of change that is rarest so far and possible here; None where there is none."""
    for kind in sorted(CORRUPTIONS, key=lambda kind: (counts[kind], rng.random())):
        for text in rng.sample(texts, len(texts)):
            spoilt = CORRUPTIONS[kind](post, text, others, rng)
            if spoilt is not None and spoilt.text.strip() and spoilt.text not in seen:
                return spoilt
    return None


def annotated(spoilt: Spoilt, judged: Feedback) -> Feedback:
    """The program's feedback with what is known besides: the fault first, its span poor, no praise that reaches in."""
    if spoilt.wrong is None:
        return judged
    text = spoilt.text
    good = [piece for quote in judged.good for piece in _outside(quote, text, spoilt.wrong)]
    known = unique_quote(text, *spoilt.wrong)
    poor = [*(quote for quote in judged.poor if quote not in known), known]
    poor = [quote for quote in poor if not any(quote in other and quote != other for other in poor)]
    poor.sort(key=text.find)
    return Feedback(f"{spoilt.remark} {judged.critique}", list(dict.fromkeys(good)), poor)


def _outside(quote: str, text: str, wrong: Interval) -> list[str]:
    """What of a quote lies outside the wrong characters, in whole words."""
    places = [place for place in ground(quote, text) if place[0] < wrong[1] and wrong[0] < place[1]]
    if not places:
        return [quote]
    first, last = places[0]
    pieces = [(first, _word_end(text, first, wrong[0])), (_word_start(text, wrong[1], last), last)]
    return [unique_quote(text, *_stripped(text, piece)) for piece in pieces if text[slice(*piece)].strip(" .,!?")]


def _word_end(text: str, start: int, end: int) -> int:
    """Where the last whole word before ``end`` ends."""
    while end > start and not text[end - 1].isspace():
        end -= 1
    return max(start, end)


def _word_start(text: str, start: int, end: int) -> int:
    """Where the first whole word after ``start`` begins."""
    while start < end and not text[start].isspace():
        start += 1
    return min(start, end)


def _stripped(text: str, place: Interval) -> Interval:
    start, end = place
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


@command
def main() -> None:
    config = parse(HardNegativesConfig)
    check_given(config, "data_path", "output_path")
    check_positive(config, "per_post")
    check_output(config.output_path)
    records = load_records(config.data_path, get_task("slf5k"), responses=False)
    made = hard_negatives(records, config.per_post, config.max_words, config.seed)
    save_records(config.output_path, Records(made, Path(config.output_path), keyed=True))
    kinds = Counter(record["annotation"]["kind"] for record in made.values())
    print(f"{config.output_path}: {len(made)} summaries of {len(records)} posts")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))


if __name__ == "__main__":
    main()
