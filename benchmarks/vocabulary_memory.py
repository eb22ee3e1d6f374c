"""Does the memory of an update grow with the vocabulary? One forward and backward pass at several vocabulary sizes.

    python benchmarks/vocabulary_memory.py --output_path runs/benchmarks/vocabulary_memory.json

A small random Llama scores 2 048 response tokens (log-probabilities and entropy) and goes backward; its embedding is
frozen, so that only the memory of the scores grows. Three ways: the project's scorer, the head that TRL's trainers
fuse into the loss, and plain logits of all positions. Each figure is the growth of a process's own peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.pages import check_page, page_setting, write_section
from nl_gradient_policy_optimization.policy import PolicyScorer
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import save_json

ROOT = Path(__file__).resolve().parent.parent
WAYS = {"ours": "`PolicyScorer`", "trl": "TRL's fused head", "plain": "all logits at once"}


@dataclass
class VocabularyConfig:
    output_path: str = setting("", "JSON file for the figures; none by default", "--output_file", "--output")
    vocabularies: list[int] = setting([32768, 65536, 131072, 262144], "vocabulary sizes to try")
    responses: int = setting(4, "responses in the batch")
    response_tokens: int = setting(512, "tokens of each response")
    page: str = page_setting("vocabulary_memory")


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


def score_and_backpropagate(way: str, model: LlamaForCausalLM, ids: Tensor) -> None:
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


def print_memory_growth(way: str, vocabulary: str, responses: str, tokens: str) -> None:
    """What a process does: print the MiB by which the forward and backward pass raised its peak memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = small_llama(int(vocabulary))
    score_and_backpropagate("ours", small_llama(1024), torch.zeros(1, 2, dtype=torch.long))  # what any first pass loads
    ids = torch.randint(int(vocabulary), (int(responses), 1 + int(tokens)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    score_and_backpropagate(way, model, ids)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def memory_growth(way: str, vocabulary: int, config: VocabularyConfig) -> float:
    sizes = map(str, (vocabulary, config.responses, config.response_tokens))
    done = subprocess.run(
        [sys.executable, __file__, "--one", way, *sizes], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise InputError(f"{way} with {vocabulary} words ended with {done.returncode}; its output above says why")
    return float(done.stdout.splitlines()[-1])


@command
def main() -> None:
    if "--one" in sys.argv:
        print_memory_growth(*sys.argv[-4:])
        return
    config = parse(VocabularyConfig)
    check_page(config.page, "vocabulary_memory")
    figures = {way: {v: memory_growth(way, v, config) for v in config.vocabularies} for way in WAYS}
    rows = [[WAYS[way], *(f"{mib:.0f} MiB" for mib in row.values())] for way, row in figures.items()]
    header = ["vocabulary", *(f"{v // 1024}k" for v in config.vocabularies)]
    table = tabulate(rows, header, tablefmt="pipe", colalign=["left", *["right"] * len(config.vocabularies)])
    print(table)
    if config.output_path:
        save_json(config.output_path, json.loads(json.dumps({"settings": vars(config), "mib": figures})))
    write_section(config.page, "vocabulary_memory", table)


if __name__ == "__main__":
    main()
