"""Broken, cut, wrapped and mixed-up replies by the hundred: no crash, and no span that the reply did not hold."""

import json
import random
import re

import pytest

from rm_data_anno.validation import validate
from tests.injuries import injured_text
from text2grad.feedback import FeedbackError
from text2grad.tasks import Task, get_task

pytestmark = pytest.mark.fast

RESPONSES = [
    "The cat sat on the mat, and the dog “barked” — loudly…",
    "def mean(xs):\n    total = sum(xs)\n    return total / len(xs)  # ZeroDivisionError for []\n",
    'She said "no {thanks}" \\ and left: 50 % of it, C:\\temp\\new.',
    "今天天气很好。我们去公园吧! 🎉🎉 café naïve e\u0301tude",
    "Here you are:\n```python\nprint('a')\nprint(\"b\")\n```\nDone.",
    '{} [] {"textual_feedback": "x"} null',
]
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def quotes_of(chance: random.Random, response: str) -> list[str]:
    """Cut from the response, most of them; the others changed or made up."""
    quotes = []
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        start = chance.randrange(len(response))
        quote = response[start : start + chance.randint(1, 20)]
        if chance.random() < 0.3:
            changed = [quote.upper(), f"{quote}...", quote.replace(" ", "  "), "never said", " ", quote[::-1]]
            quote = chance.choice(changed)
        quotes.append(quote)
    return quotes


def valid_object(chance: random.Random, task: Task, response: str) -> dict:
    fields = task.fields
    value: dict = {"reasoning": 'Step {1}: look. "Yes".'} if chance.random() < 0.5 else {}
    rest = chance.choice(["{", "braces }", "the rest"])
    value[fields.critique] = f"The words {response[:9]!r} are fine; {rest} is not."
    value[fields.good] = quotes_of(chance, response)
    value[fields.poor] = quotes_of(chance, response)
    if chance.random() < 0.15:
        value["scores"] = [[word, chance.choice([-1, 0, 1, 0.5])] for word in response.split()]
    return value


def wrapped(chance: random.Random, text: str) -> str:
    return chance.choice([
        text, f"```json\n{text}\n```", f"Sure! {{Here}} is my view:\n\n{text}\n\nHope that {{helps}}.",
        f'First draft: {{"a": 1}}\n{text}', f'<think>{{ "x": [1, 2</think>\n{text}', f"\ufeff \n{text}\n",
    ])  # fmt: skip


def broken(chance: random.Random, text: str, task: Task) -> str:
    """Random injuries, and of every other reply first its form."""
    name = chance.choice([task.fields.critique, task.fields.good, task.fields.poor])
    forms = [
        lambda: text.replace('"', "'"), lambda: text.replace("_spans", " Spans"), lambda: f'{{"answer": {text}}}',
        lambda: f"[{text}]", lambda: chance.choice(["[", '{"a":', '[{"x":']) * chance.choice([3, 50, 3000]) + text,
        lambda: text.replace(f'"{name}"', chance.choice([f'"{name.title()}"', '"other"', f'"{name}": [], "{name}"'])),
        lambda: re.sub(r"\[[^\[\]]*\]", chance.choice(["null", '"one"', "[1]", "[[]]", '[{"a": "b"}]']), text, count=1),
    ]  # fmt: skip
    text = chance.choice(forms)() if chance.random() < 0.5 else text
    return injured_text(chance, text) if chance.random() < 0.8 else text


def strings_in(text: str) -> set[str]:
    """Every string that the text holds under any reading: a literal may begin at any quotation mark."""
    text = re.sub(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?', lambda it: it[0] if it[1] else "\\\\", text)  # lone: itself
    found = set()
    for start in (match.start() for match in re.finditer('"', text)):
        literal = STRING.match(text, start)
        if literal:
            try:
                found.add(json.loads(literal.group(), strict=False))
            except json.JSONDecodeError:
                continue
    return found


def test_fifteen_hundred_broken_replies():
    chance = random.Random(0)
    seen = {"read": 0, "refused": 0, "spans": 0, "unmatched": 0}
    for _ in range(1_500):
        task = get_task(chance.choice(["slf5k", "kodcode", "ultrafeedback"]))
        response = chance.choice(RESPONSES)
        reply = json.dumps(valid_object(chance, task, response), ensure_ascii=chance.random() < 0.5)
        reply = broken(chance, wrapped(chance, reply), task)
        try:
            feedback = task.parse_feedback(reply)
        except FeedbackError as error:
            assert str(error)
            seen["refused"] += 1
            continue
        seen["read"] += 1
        said = strings_in(reply)
        assert feedback.critique in {text.strip() for text in said}
        spans = feedback.good + feedback.poor
        assert all(span in said for span in spans)
        assert all(piece in said and -1 <= score <= 1 for piece, score in feedback.scores)

        checked = validate(feedback, response, task)
        kept = checked.feedback.good + checked.feedback.poor
        judged = [response[start:end] for start, end in task.rewarded(response)]
        assert all(any(span in text for text in judged) for span in kept)
        assert not set(checked.feedback.good) & set(checked.feedback.poor)
        if not feedback.scores:
            assert all(
                span in kept
                for span in spans
                if any(span in text for text in judged) and span not in checked.contradicted
            )
            dropped = len(checked.unmatched) + len(checked.unjudged) + len(checked.contradicted)
            assert len(kept) + dropped + checked.repeated == len(spans)
        json.dumps(task.with_feedback({}, checked.feedback, {}), ensure_ascii=False).encode()
        seen["spans"] += len(kept)
        seen["unmatched"] += len(checked.unmatched)
    assert min(seen.values()) > 60, seen


@pytest.mark.parametrize("name", ["slf5k", "kodcode", "ultrafeedback"])
def test_what_is_only_wrapped_is_read_unchanged_and_what_is_cut_off_is_never_read(name):
    chance, task = random.Random(7), get_task(name)
    for _ in range(300):
        response = chance.choice(RESPONSES)
        value = valid_object(chance, task, response)
        reply = json.dumps(value, ensure_ascii=False)
        feedback = task.parse_feedback(wrapped(chance, reply))
        assert feedback == task.fields.from_dict(value)
        with pytest.raises(FeedbackError):
            task.parse_feedback(wrapped(chance, "").split("Hope")[0] + reply[: chance.randrange(1, len(reply))])
