"""What quote-constrained decoding costs: milliseconds per token that the reward model writes, on top of the model.

    python benchmarks/constrained_decoding.py --task slf5k --data_path posts_with_summaries.json \\
        --output_path runs/benchmarks/constrained_decoding.json

For each response, feedback with quotes of it is followed token by token: the mask is computed, then the automaton
moves. ``128k`` is the tokenizer's vocabulary, filled up with joined tokens to the size of Llama 3's.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from text2grad.configs import TASK_HELP, parse, setting
from text2grad.critics.reward_model.constraints import QuoteConstraint
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback
from text2grad.models import load_tokenizer
from text2grad.records import load_records, save_json
from text2grad.tasks import Task, get_task

_CRITIQUE = "The summary says what happened and names the people, but it leaves out what the writer wants to know. "
_LARGE = 128_256


@dataclass
class ConstraintCostConfig:
    data_path: str = setting("", "records with responses, annotated or not", "--dataset_path", "--data")
    output_path: str = setting("", "JSON file for the figures; none by default", "--output_file", "--output")
    task: str = setting("slf5k", TASK_HELP)
    tokenizer: str = setting("smollm2", "the reward model's tokenizer; byte-level BPE")
    limit: int = setting(200, "how many responses to follow")
    seed: int = setting(42, "seed of the responses and, if they are not annotated, of their spans")


def filled_up(tokenizer: PreTrainedTokenizerBase, size: int, seed: int) -> PreTrainedTokenizerFast:
    """The same tokenizer with joined pairs of its tokens as further tokens (which encoding never uses)."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    if description["model"]["type"] != "BPE":
        raise InputError("the larger vocabulary is made from a BPE tokenizer; give one")
    vocabulary, rng = description["model"]["vocab"], random.Random(seed)
    pieces = [token for token in vocabulary if 1 < len(token) < 8]
    while len(vocabulary) < size:
        vocabulary.setdefault(rng.choice(pieces) + rng.choice(pieces), len(vocabulary))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(description)), eos_token=tokenizer.eos_token
    )


def feedback_text(response: str, feedback: Feedback | None, task: Task, rng: random.Random) -> str:
    """z for a response: its own annotation, or feedback with four spans drawn at random."""
    if feedback is not None:
        return task.render_feedback(feedback)
    spans = []
    for start, end in rng.choices(task.rewarded(response), k=4):
        first = rng.randrange(start, end)
        spans.append(response[first : rng.randint(first + 1, min(end, first + 80))])
    spans = [span for span in spans if span.strip()]
    return task.render_feedback(Feedback(_CRITIQUE * 2, spans[:2], spans[2:]))


def time_constraint(
    constraint: QuoteConstraint, tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]]
) -> dict:
    """Times in milliseconds over (response, z) pairs; a first pass over some of them warms what is shared."""
    for response, z in pairs[:10]:
        time_response(constraint, tokenizer, response, z)
    times, setups = [], []
    for response, z in pairs:
        setup, steps = time_response(constraint, tokenizer, response, z)
        setups.append(setup)
        times += steps
    per_token = (sum(times) + sum(setups)) / len(times)
    return {
        "judgements": len(pairs),
        "tokens": len(times),
        "ms_per_token": round(1000 * per_token, 4),
        "ms_per_token_median": round(1000 * float(np.median(times)), 4),
        "ms_per_token_p99": round(1000 * float(np.quantile(times, 0.99)), 4),
        "ms_per_response_before_the_first_token": round(1000 * float(np.mean(setups)), 4),
    }


def time_response(
    constraint: QuoteConstraint, tokenizer: PreTrainedTokenizerBase, response: str, z: str
) -> tuple[float, list[float]]:
    """Seconds of processor time to prepare for a response, and for each token of z."""
    ids = tokenizer(z, add_special_tokens=False)["input_ids"]
    begin = time.process_time()
    matcher = constraint.matcher(response)
    position = matcher.start
    setup, steps = time.process_time() - begin, []
    for token in ids:
        begin = time.process_time()
        forbidden = matcher.forbidden(position)
        position = matcher.next(position, token)
        steps.append(time.process_time() - begin)
        if forbidden[token]:
            raise RuntimeError(f"token {token} of valid feedback is forbidden")
    return setup, steps


@command
def main() -> None:
    config = parse(ConstraintCostConfig)
    if not config.data_path:
        raise InputError("--data_path is missing; give a file of records with responses")
    task, rng = get_task(config.task), random.Random(config.seed)
    records = list(load_records(config.data_path, task).values())
    records = rng.sample(records, min(config.limit, len(records)))
    pairs = []
    for record in records:
        response = task.response(record)
        pairs.append((response, feedback_text(response, task.feedback(record), task, rng)))
    small = load_tokenizer(config.tokenizer)
    result = {"task": config.task, "mean_response_characters": round(sum(len(y) for y, _ in pairs) / len(pairs))}
    for name, tokenizer in ((f"{len(small) // 1000}k", small), ("128k", filled_up(small, _LARGE, config.seed))):
        begin = time.process_time()
        constraint = QuoteConstraint(tokenizer, task)
        seconds = time.process_time() - begin
        result[name] = {"seconds_to_make": round(seconds, 2), **time_constraint(constraint, tokenizer, pairs)}
        print(f"{name}: {result[name]}")
    if config.output_path:
        save_json(config.output_path, result)


if __name__ == "__main__":
    main()
