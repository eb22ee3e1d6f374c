"""MT-Bench's files, its temperatures, and which questions are graded with a reference answer (Zheng et al. 2023)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import InputError
from text2grad.prompts import Prompt, load_prompt
from text2grad.records import load_json

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
TEMPERATURES = {"writing": 0.7, "roleplay": 0.7, "stem": 0.1, "humanities": 0.1}
"""At which a category's answers are sampled; the others greedily. MT-Bench's own values."""
WITH_REFERENCE = ("math", "reasoning", "coding")
ANSWER_TOKENS = 1024

_RATING = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
_PROMPTS = {
    (1, False): ("mt_bench_turn_1.txt", "single-v1"),
    (1, True): ("mt_bench_turn_1_reference.txt", "single-math-v1"),
    (2, False): ("mt_bench_turn_2.txt", "single-v1-multi-turn"),
    (2, True): ("mt_bench_turn_2_reference.txt", "single-math-v1-multi-turn"),
}
_FASTCHAT_NAMES = {
    "question": "question_1",
    "answer": "answer_1",
    "ref_answer_1": "reference_1",
    "ref_answer_2": "reference_2",
}


def load_questions(path: str) -> dict[str, dict[str, Any]]:
    """``question.jsonl`` by question id; each has a category and two turns."""
    questions = {}
    for number, row in enumerate(_rows(path), 1):
        turns = row.get("turns")
        named = "question_id" in row and isinstance(row.get("category"), str)
        if not named or not isinstance(turns, list) or len(turns) != 2:
            raise InputError(
                f"{path}: line {number} lacks question_id, category or two turns; give FastChat's question.jsonl"
            )
        questions[str(row["question_id"])] = row
    return questions


def load_answers(path: str) -> dict[str, list[str]]:
    """Both turns of each answer, or reference answer, in FastChat's format, by question id."""
    answers = {}
    for number, row in enumerate(_rows(path), 1):
        try:
            turns = row["choices"][0]["turns"]
            answers[str(row["question_id"])] = [str(turns[0]), str(turns[1])]
        except (KeyError, IndexError, TypeError):
            raise InputError(
                f"{path}: line {number} lacks question_id or choices with two turns; see FastChat's format"
            ) from None
    return answers


def _rows(path: str) -> Sequence[dict]:
    rows = load_json(path)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: holds no rows; give a .jsonl file in FastChat's format")
    for key, count in Counter(str(row["question_id"]) for row in rows if "question_id" in row).items():
        if count > 1:
            raise InputError(f"{path}: question {key} comes {count} times; keep one row of it")
    return rows


def load_judge_prompts(fastchat_path: str | None = None) -> dict[tuple[int, bool], Prompt]:
    """(turn, with reference) -> prompt: this folder's, or those of FastChat's ``judge_prompts.jsonl``.

    FastChat's place-holders are braces; its system prompt goes in front of the question.
    """
    rows = _rows(fastchat_path) if fastchat_path else []
    by_name = {str(row.get("name")): row for row in rows if isinstance(row.get("prompt_template"), str)}
    prompts = {}
    for key, (file, name) in _PROMPTS.items():
        names = _names(*key)
        if fastchat_path is None:
            prompts[key] = load_prompt(Path(__file__).parent / file, required=names, offered=names)
            continue
        if name not in by_name:
            raise InputError(f"{fastchat_path}: lacks the prompt {name!r}; give FastChat's judge_prompts.jsonl")
        text = f"{by_name[name].get('system_prompt', '')}\n\n{by_name[name]['prompt_template']}".strip()
        prompts[key] = Prompt(_with_our_names(text, names), frozenset(names), fastchat_path)
    return prompts


def _with_our_names(text: str, names: set[str]) -> str:
    """FastChat's ``{answer}`` as ``${answer_1}``, and so on."""
    ours = {**_FASTCHAT_NAMES, **{name: name for name in names}}
    pattern = "|".join(re.escape(f"{{{theirs}}}") for theirs in ours)
    return re.sub(pattern, lambda found: f"${{{ours[found[0][1:-1]]}}}", text.replace("$", "$$"))


def _names(turn: int, reference: bool) -> set[str]:
    kinds = ("question", "answer", "reference") if reference else ("question", "answer")
    return {f"{kind}_{number}" for kind in kinds for number in range(1, turn + 1)}


def judge_question(
    prompts: Mapping[tuple[int, bool], Prompt],
    turn: int,
    question: Mapping[str, Any],
    answer: Sequence[str],
    reference: Sequence[str] | None,
) -> str:
    """What the judge is asked about one turn of one answer."""
    texts = {"question": question["turns"], "answer": answer, "reference": reference or ("", "")}
    fields = {f"{kind}_{number}": text for kind, turns in texts.items() for number, text in enumerate(turns, 1)}
    return prompts[turn, reference is not None].fill(fields)


def read_rating(text: str) -> dict[str, Any]:
    """The last ``[[rating]]`` of a judgement; ``ValueError`` where there is none from 1 to 10."""
    ratings = _RATING.findall(text)
    if not ratings:
        raise ValueError(f"the judge gives no rating like [[5]]: {text[-200:]!r}")
    rating = float(ratings[-1])
    if not 1 <= rating <= 10:
        raise ValueError(f"the judge's rating {rating:g} is not from 1 to 10")
    return {"rating": rating, "judgement": text}
