"""How good a system's summaries are: one result file with intervals.

    python evaluation/slf5k/evaluate.py --data_path answers.json --system base --output_path base.result.json \\
        --critic programmatic

``answers.json`` is written by ``evaluation/generate.py``, or is any file in the SLF5K format. Metrics against the human
summary need ``ideal_human_summary``. ``--references true`` measures that summary in place of the system's: the human
row of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.measuring import (
    MeasureConfig,
    check_measuring,
    compare_and_save,
    critic_figures,
    load_measured_responses,
    share_finished,
)
from evaluation.optional_packages import optional_package
from evaluation.slf5k.metrics import text_figures
from evaluation.slf5k.model_metrics import bertscore, perplexity
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import load_records
from text2grad.tasks import Record, Task, get_task


@dataclass
class SummaryEvaluationConfig(MeasureConfig):
    """What is measured."""

    bertscore_model: str | None = setting(None, "encoder for BERTScore, hub id or folder; roberta-large is customary")
    bertscore_layer: int | None = setting(None, "its layer; by default the one that bert-score recommends")
    perplexity_model: str | None = setting(None, "causal LM under which perplexity is measured")
    references: bool = setting(False, "measure the records' human summaries in place of the system's")


def evaluate_summaries(config: SummaryEvaluationConfig) -> dict:
    """Measure, write ``config.output_path``, and return the result."""
    task = get_task("slf5k")
    records = load_references(config, task) if config.references else load_measured_responses(config, task)
    responses = {key: task.response(record) for key, record in records.items()}
    posts = {key: task.prompt(record) for key, record in records.items()}
    references = {key: text for key, record in records.items() if (text := task.reference(record))}
    if config.bertscore_model:
        optional_package("bert_score")
    if config.bertscore_model and not references:
        raise InputError(f"{config.data_path}: no record has an ideal_human_summary, which BERTScore compares with")
    figures = {**text_figures(responses, posts, references), "finished": share_finished(records)}
    if config.bertscore_model:
        figures["bertscore"] = bertscore(responses, references, config.bertscore_model, config.bertscore_layer)
    if config.perplexity_model:
        figures["perplexity"] = perplexity(responses, config.perplexity_model)
    by_critic, extra = critic_figures(config, records, task)
    result = compare_and_save(config, task, "slf5k", {**figures, **by_critic}, records, extra)
    if len(references) < len(records):
        print(f"  {len(records) - len(references)} posts have no ideal_human_summary and are not in ROUGE and BLEU")
    return result


def load_references(config: SummaryEvaluationConfig, task: Task) -> dict[str, Record]:
    """A record of each post that has a human summary, with it as the response; by the ids of ``generate.py``."""
    check_measuring(config)
    records = load_records(config.data_path, task, responses=False)
    found = {key: (record, text) for key, record in records.items() if (text := task.reference(record))}
    if not found:
        raise InputError(f"{config.data_path}: no record has an ideal_human_summary to measure")
    return {key: task.with_response(_unwritten(record), text) for key, (record, text) in found.items()}


def _unwritten(record: Record) -> Record:
    """Without what was noted about a system's response."""
    return {name: value for name, value in record.items() if name != "generation"}


@command
def main() -> None:
    evaluate_summaries(parse(SummaryEvaluationConfig))


if __name__ == "__main__":
    main()
