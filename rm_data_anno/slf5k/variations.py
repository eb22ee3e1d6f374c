"""Make thousands of annotated records out of few posts, so that a reward model learns to compare instead of recalling.

python rm_data_anno/slf5k/variations.py --data_path posts.json --answers base.json policy.json --output_path varied.json
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Literal

from rm_data_anno.slf5k.corruptions import CORRUPTIONS, marked, split, spoil
from text2grad.configs import check_given, parse, setting
from text2grad.critics.programs.slf5k.critic import WorkedSummaryCritic
from text2grad.errors import InputError, command
from text2grad.records import Records, check_output, load_records, prompt_of, save_records
from text2grad.tasks import Record, get_task

SHARES = {
    "answer": 40, "of another post": 5, "cut off": 5, "patchwork": 10, "copied": 14, "mixed": 8, "spoilt": 18,
}  # fmt: skip
"""Percent of the responses that are made in each way."""
_AS_IT_IS, _LEFT_OUT = 0.25, 0.5  # shares of the posts; the others have sentences of another post
_ATTEMPTS = 20  # for each response, where most of them are equal


@dataclass(kw_only=True)
class SummaryVariationsConfig:
    data_path: str = setting("", "posts with a person's summary, ideal_human_summary", "--dataset_path", "--input_file")
    answers: list[str] = field(default_factory=list, metadata={"help": "files of sampled answers to these posts"})
    output_path: str = setting("", "annotated records, ready for stage 2", "--output_file", "--output")
    rounds: int = setting(20, "variations of each post", above=0)
    per_post: int = setting(8, "responses to each variation, in a row of the file", above=0)
    critique_style: Literal["worked", "facts"] = setting(
        "worked",
        "worked says of each fact whether the post has it, and in how long a run, which a small model learns from; "
        "facts leaves the runs out",
    )
    seed: int = setting(0, "of all that is drawn")


@dataclass(frozen=True)
class PostTexts:
    """A post to make records of: its sentences, a person's summary, and sampled answers without an end."""

    sentences: list[str]
    human: str
    answers: Iterator[str]


def variations(
    posts: Records, answers: Mapping[str, Sequence[str]], config: SummaryVariationsConfig
) -> dict[str, Record]:
    """Annotated records by id, ``POST~ROUND#NUMBER``.

    A variation is the post as it is, or without some sentences, or with some of another post's instead. What a
    response says is true of one variation and not of another, so that knowing the post by heart does not help.

    Args:
        posts: records with ``ideal_human_summary``.
        answers: sampled answers to each post, by the post's id.
        config: how many, and how the rules criticise them; the files that it names are not read.

    Raises:
        InputError: fewer than two posts, or a post without a summary or without an answer.
    """
    task, rng = get_task("slf5k"), random.Random(config.seed)
    critic = WorkedSummaryCritic(runs=config.critique_style == "worked")
    sources = _sources(posts, answers, rng)
    counts: Counter[str] = Counter(dict.fromkeys(CORRUPTIONS, 0))
    made: dict[str, Record] = {}
    for number, (key, own) in product(range(config.rounds), sources.items()):
        stranger = sources[rng.choice([other for other in sources if other != key])]
        post = _variation(own.sentences, stranger.sentences, rng)
        seen: set[str] = set()
        for _ in range(_ATTEMPTS * config.per_post):
            if len(seen) == config.per_post:
                break
            (how,) = rng.choices(list(SHARES), list(SHARES.values()))
            spoilt = None
            if how == "spoilt":
                spoilt = spoil(post, [own.human, next(own.answers)], [stranger.human], counts, seen, rng)
                text = spoilt.text if spoilt else ""
            else:
                text = _response(how, own, stranger, rng)
            if not text or text in seen:
                continue
            feedback = critic.feedback_on(post, text)
            if spoilt:
                counts[spoilt.kind] += 1
                feedback = marked(feedback, spoilt)
            record = {"id": f"{key}~{number}#{len(seen)}", "post": post, "ideal_human_summary": own.human}
            about = {"source": "variations", "how": how}
            made[record["id"]] = task.with_feedback(task.with_response(record, text), feedback, about)
            seen.add(text)
    return made


def _sources(posts: Records, answers: Mapping[str, Sequence[str]], rng: random.Random) -> dict[str, PostTexts]:
    if len(posts) < 2:
        raise InputError(f"{posts.path}: holds one post; give at least two, since sentences are exchanged between them")
    found = {}
    for key, record in posts.items():
        human = str(record.get("ideal_human_summary") or record.get("generated_summary") or "").strip()
        if not human:
            raise InputError(f"{posts.path}: record {key!r} has no summary; give it ideal_human_summary")
        if not answers.get(key):
            raise InputError(f"{posts.path}: record {key!r} has no sampled answer; give --answers that cover all posts")
        drawn = rng.sample(list(answers[key]), len(answers[key]))
        found[key] = PostTexts(split(get_task("slf5k").prompt(record)), human, cycle(drawn))
    return found


def _variation(sentences: Sequence[str], foreign: Sequence[str], rng: random.Random) -> str:
    """The post, or what is left of it, or with another post's sentences in place of some of its own."""
    chance = rng.random()
    changed = rng.sample(range(len(sentences)), rng.randint(1, max(1, len(sentences) // 2)))
    if chance < _AS_IT_IS or len(sentences) < 2:
        return " ".join(sentences)
    if chance < _AS_IT_IS + _LEFT_OUT:
        return " ".join(sentence for at, sentence in enumerate(sentences) if at not in changed)
    return " ".join(rng.choice(foreign) if at in changed else sentence for at, sentence in enumerate(sentences))


def _response(how: str, own: PostTexts, stranger: PostTexts, rng: random.Random) -> str:
    """A response made in one of the ways of ``SHARES``, without one that is spoilt."""
    if how == "of another post":
        return next(stranger.answers).strip()
    if how == "cut off":
        words = next(own.answers).split()
        return " ".join(words[: rng.randint(max(3, len(words) // 3), max(4, len(words) - 1))])
    if how == "patchwork":  # the post's words in the post's order, as a policy that is paid for facts writes them
        words = " ".join(rng.sample(own.sentences, min(2, len(own.sentences)))).split()
        return " ".join([word for word in words if rng.random() > 0.35][: rng.randint(10, 35)])
    if how == "copied":  # a run of the post's words, from too short to be a fault to two sentences long
        words, rest = " ".join(own.sentences).split(), rng.choice([own.human, next(own.answers)]).split()
        length, at = rng.choice([rng.randint(3, 9), rng.randint(8, 24)]), rng.randint(0, min(12, len(rest)))
        start = rng.randrange(max(1, len(words) - length))
        return " ".join([*rest[:at], *words[start : start + length], *rest[at : at + rng.randint(0, 14)]])
    if how == "mixed":
        pieces = [rng.choice(split(own.human)), rng.choice(split(next(own.answers)) or [own.human])]
        return " ".join(rng.sample(pieces, 2))
    return next(own.answers).strip()


def load_answers(paths: Sequence[str]) -> dict[str, list[str]]:
    """Answers by the id of their post."""
    task = get_task("slf5k")
    found: dict[str, list[str]] = {}
    for path in paths:
        for key, record in load_records(path, task).items():
            found.setdefault(prompt_of(key), []).append(task.response(record))
    return found


@command
def main() -> None:
    config = parse(SummaryVariationsConfig)
    check_given(config, "data_path", "answers", "output_path")
    check_output(config.output_path)
    posts = load_records(config.data_path, get_task("slf5k"), responses=False)
    made = variations(posts, load_answers(config.answers), config)
    save_records(config.output_path, Records(made, Path(config.output_path), keyed=True))
    kinds = Counter(record["annotation"]["how"] for record in made.values())
    print(f"{config.output_path}: {len(made)} responses to {config.rounds} variations of {len(posts)} posts")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print("variations of one post are alike: train with --validation_share 0, or --validation_path of other posts")


if __name__ == "__main__":
    main()
