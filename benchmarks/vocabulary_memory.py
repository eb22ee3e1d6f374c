"""Does the memory of an update grow with the vocabulary? One forward and backward pass at several sizes of it.

    python benchmarks/vocabulary_memory.py --output runs/benchmarks/vocabulary_memory.json

A small random Llama scores 2 048 response tokens (log-probabilities and entropy) and goes backward; its embedding is
frozen, so that what grows is the scores' memory alone. Three ways: the project's scorer, the head that TRL's trainers
fuse into the loss, and plain logits of all positions. Each figure is the growth of a process's own peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.micro.results import with_section
from nl_gradient_policy_optimization.policy import PolicyScorer
from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.records import save_json, save_text

ROOT = Path(__file__).resolve().parent.parent
WAYS = {"ours": "`PolicyScorer`", "trl": "TRL's fused head", "plain": "all logits at once"}


@dataclass
class VocabularyConfig:
    output: str = field(default="", metadata={"help": "where the figures go, JSON"})
    vocabularies: list[int] = field(
        default_factory=lambda: [32768, 65536, 131072, 262144], metadata={"help": "sizes to try"}
    )
    responses: int = field(default=4, metadata={"help": "in the batch"})
    response_tokens: int = field(default=512, metadata={"help": "of each"})
    page: str = field(default="benchmarks/README.md", metadata={"help": "whose section is rewritten; empty: none"})


def small_llama(vocabulary: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
    )
    model.get_input_embeddings().requires_grad_(False)
    return model


def update(way: str, model: LlamaForCausalLM, ids: Tensor) -> None:
    """Log-probabilities and entropy of all tokens but the first, and their gradient. ``ids``: ``[B, 1 + T]``."""
    mask = torch.ones_like(ids)
    if way == "ours":
        logprobs, entropy, _ = PolicyScorer(model)(ids, mask, mask[:, 1:], entropy=True)
    elif way == "trl":
        from trl.trainer import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        output = model(input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True)
        logprobs, entropy = output.log_probs, output.entropy
    else:
        log_probs = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
        logprobs = log_probs.gather(-1, ids[:, 1:, None])
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    (logprobs.sum() + 0.01 * entropy.sum()).backward()


def measure(way: str, vocabulary: str, responses: str, tokens: str) -> None:
    """The body of a process: prints the MiB by which the update raised its peak."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = small_llama(int(vocabulary))
    update("ours", small_llama(1024), torch.zeros(1, 2, dtype=torch.long))  # what any first pass loads
    ids = torch.randint(int(vocabulary), (int(responses), 1 + int(tokens)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    update(way, model, ids)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def in_a_process(way: str, vocabulary: int, config: VocabularyConfig) -> float:
    sizes = map(str, (vocabulary, config.responses, config.response_tokens))
    done = subprocess.run(
        [sys.executable, __file__, "--one", way, *sizes], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise InputError(f"{way} with {vocabulary} words ended with {done.returncode}; the reason stands above")
    return float(done.stdout.splitlines()[-1])


@command
def main() -> None:
    if "--one" in sys.argv:
        measure(*sys.argv[-4:])
        return
    config = parse(VocabularyConfig)
    figures = {way: {v: in_a_process(way, v, config) for v in config.vocabularies} for way in WAYS}
    rows = [[WAYS[way], *(f"{mib:.0f} MiB" for mib in row.values())] for way, row in figures.items()]
    header = ["vocabulary", *(f"{v // 1024}k" for v in config.vocabularies)]
    table = tabulate(rows, header, tablefmt="pipe", colalign=["left", *["right"] * len(config.vocabularies)])
    print(table)
    if config.output:
        save_json(config.output, json.loads(json.dumps({"settings": vars(config), "mib": figures})))
    if config.page:
        page = Path(config.page)
        save_text(page, with_section(page.read_text(encoding="utf-8"), "vocabulary_memory", table))


if __name__ == "__main__":
    main()
