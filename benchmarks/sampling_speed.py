"""What ``--generation decoder`` gains on a CPU: the same responses' length sampled by ``generate`` and by the decoder.

    python benchmarks/sampling_speed.py --data_path quickstart/data/posts_train.json

The policy is the quickstart's: SmolLM2 with LoRA adapters on all layers, eight posts, 48 tokens each and no early end.
Both sample in turn, round after round, so that other work on the machine slows both. Seconds are processor time. The
decoder's include the merged copy of the weights, which stage 3 makes anew for each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, PreTrainedModel

from nl_gradient_policy_optimization.rollouts import encode_prompt, padded
from text2grad.configs import TASK_HELP, parse, setting
from text2grad.errors import command
from text2grad.models import load_model, load_tokenizer
from text2grad.models.decoder import Decoder
from text2grad.records import load_records
from text2grad.tasks import get_task


@dataclass
class SamplingSpeedConfig:
    data_path: str = setting("", "records whose prompts are answered")
    task: str = setting("slf5k", TASK_HELP)
    model: str = setting("smollm2", "a Llama, Mistral or Qwen2 model")
    prompts: int = setting(8, "how many prompts, one response to each")
    max_new_tokens: int = setting(48, "tokens of each response")
    lora_r: int = setting(16, "rank of the adapters")
    rounds: int = setting(5, "how often each of the two samples")


def generate(model: PreTrainedModel, prompts: list[list[int]], length: int, pad_id: int) -> None:
    """transformers' ``generate`` on prompts padded on the left, as ``--generation transformers`` calls it."""
    settings = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=length, min_new_tokens=length, pad_token_id=pad_id, disable_compile=True
    )
    inputs = padded(prompts, torch.long, "left", pad_id)
    mask = padded([[1] * len(ids) for ids in prompts], torch.long, "left")
    with torch.no_grad():
        model.generate(input_ids=inputs, attention_mask=mask, generation_config=settings)


def processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@command
def main() -> None:
    config = parse(SamplingSpeedConfig)
    task, tokenizer = get_task(config.task), load_tokenizer(config.model)
    records = list(load_records(config.data_path, task, responses=False).values())[: config.prompts]
    prompts = [encode_prompt(task.prompt(record), task, tokenizer) for record in records]
    adapters = LoraConfig(r=config.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(load_model(config.model, device="cpu"), adapters).eval()
    base = policy.get_base_model()
    ratios = []
    for number in range(1, config.rounds + 1):
        theirs = processor_seconds(lambda: generate(base, prompts, config.max_new_tokens, tokenizer.pad_token_id))
        ours = processor_seconds(lambda: Decoder(base).sample(prompts, config.max_new_tokens, end_ids=[]))
        ratios.append(theirs / ours)
        print(f"round {number}: generate {theirs:.2f} s, decoder {ours:.2f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio of {config.rounds} rounds: {median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
