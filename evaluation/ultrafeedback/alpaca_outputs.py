"""A policy's answers to AlpacaEval's instructions, in AlpacaEval's own format.

    python evaluation/ultrafeedback/alpaca_outputs.py --model smollm2 --system base \\
        --reference_path alpaca_eval_gpt4_baseline.json --output_path outputs.json

The instructions are those of the reference outputs: ``--reference_path``, else AlpacaEval 2.0's own file from the hub.
A policy that was trained with words of its own (``--policy_prompt``) is asked in these.
The same command continues an interrupted run.
"""

from dataclasses import MISSING, dataclass
from typing import Any

from evaluation.generate import BenchmarkConfig, answer_benchmark
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models.answering import AnsweringConfig, SamplingConfig
from text2grad.records import check_output, load_json, save_json
from text2grad.tasks import get_task
from text2grad.tasks.commands import quoted, say_next

ANSWER_TOKENS = 2048
"""By default: more than a whole answer takes. Answers that are cut off lose, and training's limit would cut many."""


@dataclass(kw_only=True)
class AlpacaOutputsConfig(BenchmarkConfig):
    """What is asked, and as whom."""

    system: str = setting(MISSING, "the system's name, AlpacaEval's `generator`")
    reference_path: str | None = setting(None, "outputs in AlpacaEval's format whose instructions are asked")


def load_outputs(path: str) -> list[dict[str, Any]]:
    """A system's ``{"instruction", "output", "generator", "dataset"}``, checked."""
    rows = load_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError(
            f"{path}: holds no outputs; give a list of instructions and outputs, as AlpacaEval writes them"
        )
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        texts = row if isinstance(row, dict) else {}
        if not all(isinstance(texts.get(name), str) for name in ("instruction", "output")):
            raise InputError(f"{path}: entry {number} lacks 'instruction' or 'output'; see AlpacaEval's format")
        if texts["instruction"] in seen:
            raise InputError(f"{path}: entry {number}: its instruction occurs twice; keep one output for each")
        seen.add(texts["instruction"])
    return rows


def reference_path(path: str | None) -> str:
    """``path``, or AlpacaEval 2.0's reference outputs (GPT-4 Turbo) from the hub."""
    if path is not None:
        return path
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download("tatsu-lab/alpaca_eval", "alpaca_eval_gpt4_baseline.json", repo_type="dataset")
    except OSError as error:
        raise InputError(
            f"AlpacaEval's reference outputs cannot be fetched ({' '.join(str(error).split())[:160]}); "
            "give a file by --reference_path"
        ) from None


@command
def main() -> None:
    config, answering, sampling = parse(AlpacaOutputsConfig, AnsweringConfig, SamplingConfig)
    check_output(config.output_path)
    rows = load_outputs(reference_path(config.reference_path))[: config.limit]
    prompts = {str(number): row["instruction"] for number, row in enumerate(rows)}
    replies = answer_benchmark(prompts, get_task("ultrafeedback"), config, answering, sampling, ANSWER_TOKENS)
    outputs = [
        {
            "dataset": rows[int(key)].get("dataset", "own"),
            "instruction": prompts[key],
            "output": reply["text"],
            "generator": config.system,
        }
        for key, reply in replies.items()
    ]
    save_json(config.output_path, outputs)
    print(f"{len(outputs)} of {len(rows)} answers -> {config.output_path}")
    say_next(
        f"python evaluation/ultrafeedback/alpaca_score.py --outputs {quoted(config.output_path)} "
        f"--system {quoted(config.system)} --judge openai:MODEL --output_path alpaca.result.json"
    )


if __name__ == "__main__":
    main()
