"""How good a system's summaries are: one result file with intervals.

    python evaluation/slf5k/evaluate.py --responses answers.json --system base --output_path base.result.json \\
        --critic programmatic

``answers.json`` is written by ``evaluation/generate.py``, or is any file in the SLF5K format. Metrics against the human
summary need ``ideal_human_summary``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from evaluation.deltas import judge_with_critic
from evaluation.results import (
    Figure,
    compare,
    figures_of,
    load_responses,
    load_result,
    print_differences,
    print_metrics,
    save_result,
)
from evaluation.slf5k.metrics import text_figures
from evaluation.slf5k.model_metrics import bertscore, perplexity
from text2grad.configs import parse
from text2grad.errors import InputError, command
from text2grad.models import load_tokenizer
from text2grad.records import check_writable
from text2grad.tasks import get_task


@dataclass
class EvaluateConfig:
    """What is measured."""

    responses: str = field(metadata={"help": "The system's summaries, an SLF5K file."})
    system: str = field(metadata={"help": "The system's name in tables."})
    output_path: str = field(metadata={"help": "The result file."})
    critic: str | None = field(
        default=None, metadata={"help": "programmatic, a reward model's folder, or an endpoint: adds δ per token."}
    )
    tokenizer: str = field(
        default="smollm2", metadata={"help": "Whose tokens δ is counted in; the same for all systems."}
    )
    bertscore_model: str | None = field(
        default=None, metadata={"help": "Encoder for BERTScore, hub id or folder (roberta-large is the usual one)."}
    )
    bertscore_layer: int | None = field(default=None, metadata={"help": "Its layer; by default the one recommended."})
    perplexity_model: str | None = field(default=None, metadata={"help": "Causal LM whose perplexity is reported."})
    compare_with: str | None = field(
        default=None, metadata={"help": "Another system's result file: differences by paired bootstrap."}
    )
    retry_failed: bool = field(default=False, metadata={"help": "Judge again what the critic failed on earlier."})


def evaluate(config: EvaluateConfig) -> dict:
    """Measure, write ``config.output_path``, and return the result."""
    task = get_task("slf5k")
    check_writable(config.output_path)
    other = load_result(config.compare_with) if config.compare_with else None
    records = load_responses(config.responses, task)
    responses = {key: task.response(record) for key, record in records.items()}
    posts = {key: task.prompt(record) for key, record in records.items()}
    references = {key: text for key, record in records.items() if (text := task.reference(record))}
    if config.bertscore_model and not references:
        raise InputError(f"{config.responses}: no record has an ideal_human_summary, which BERTScore compares with")
    figures = text_figures(responses, posts, references)
    figures["finished"] = Figure.mean(
        {key: record["generation"]["finished"] for key, record in records.items() if "generation" in record}
    )
    if config.bertscore_model:
        figures["bertscore"] = bertscore(responses, references, config.bertscore_model, config.bertscore_layer)
    if config.perplexity_model:
        figures["perplexity"] = perplexity(responses, config.perplexity_model)
    extra = {}
    if config.critic:
        judged = judge_with_critic(
            records,
            task,
            config.critic,
            load_tokenizer(config.tokenizer),
            f"{config.output_path}.critic.journal.jsonl",
            retry_failed=config.retry_failed,
        )
        figures |= judged.figures
        extra = {"feedback": judged.feedback, "critic_failures": judged.failures}
    if other:
        extra["compared_with"] = {"system": other["system"], "differences": compare(figures, figures_of(other))}
    result = save_result(
        config.output_path,
        task=task.name,
        benchmark="slf5k",
        system=config.system,
        figures=figures,
        responses=responses,
        settings=asdict(config),
        extra=extra,
    )
    print_metrics(result["metrics"], f"{config.system} on {len(records)} posts -> {config.output_path}")
    if len(references) < len(records):
        print(f"  {len(records) - len(references)} posts have no ideal_human_summary and are not in ROUGE and BLEU")
    if other:
        print_differences(extra["compared_with"]["differences"], f"{config.system} minus {other['system']}:")
    return result


@command
def main() -> None:
    evaluate(parse(EvaluateConfig))


if __name__ == "__main__":
    main()
