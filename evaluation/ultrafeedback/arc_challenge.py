"""ARC-Challenge by lm-eval's own command line: accuracy of the likeliest choice, plain and normalised by length.

    python evaluation/ultrafeedback/arc_challenge.py --model smollm2 --system base --output_path arc.result.json \\
        --data_path evaluation/ultrafeedback/sample_arc.jsonl

``--data_path`` is a JSON Lines file in ARC's schema (``id``, ``question``, ``choices`` with ``text`` and ``label``,
``answerKey``); without it lm-eval loads the test split from the hub. Prompt, choices and metrics are those of the
installed lm-eval's task ``arc_challenge`` in both cases. An interrupted run continues from lm-eval's cache.

With ``--base_url`` the choices are scored by a server's ``/v1/completions``, which must give log-probabilities of the
prompt (vLLM does) and needs ``--tokenizer``.
"""

import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluation.optional_packages import optional_package
from evaluation.results import Figure, ResultConfig, print_next_step, save_result
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models import base_of, best_device, is_adapter, model_identity, model_path, named_dtype
from text2grad.models.answering import AnsweringConfig
from text2grad.records import check_output, fingerprint, load_json, save_text

LOCAL_TASK = "arc_challenge_local"


@dataclass(kw_only=True)
class ArcConfig(ResultConfig):
    """What is measured. lm-eval's own files go into a folder beside the result."""

    data_path: str | None = setting(
        None, "questions in ARC's schema, .jsonl; by default the hub's", "--dataset_path", "--input_file"
    )
    train_path: str | None = setting(None, "where examples for --num_fewshot come from")
    num_fewshot: int = setting(0, "worked examples before each question; 25 is customary")
    limit: int | None = setting(None, "only the first so many questions")
    tokenizer: str | None = setting(None, "with --base_url: the served model's tokenizer")

    def __post_init__(self) -> None:
        if self.num_fewshot and self.data_path and not self.train_path:
            raise InputError("--num_fewshot with --data_path needs --train_path, where the worked examples come from")


def check_questions(path: str) -> None:
    """``InputError`` names the first question that is not in ARC's schema."""
    if not path.endswith(".jsonl"):
        raise InputError(f"{path}: must be a .jsonl file, one question a line")
    rows = load_json(path)
    if not rows:
        raise InputError(f"{path}: holds no questions")
    seen: set[str] = set()
    for number, row in enumerate(rows, 1):
        choices = row.get("choices") if isinstance(row, dict) else None
        choices = choices if isinstance(choices, dict) else {}
        texts, labels = choices.get("text"), choices.get("label")
        paired = isinstance(texts, list) and isinstance(labels, list) and len(texts) == len(labels)
        if not paired or not isinstance(labels, list) or not isinstance(row.get("question"), str):
            raise InputError(f"{path}: line {number} lacks question, or choices with as many texts as labels")
        if row.get("answerKey") not in labels:
            raise InputError(f"{path}: line {number}: answerKey {row.get('answerKey')!r} is none of {labels}")
        if (own := str(row.get("id") or f"line {number}")) in seen:
            raise InputError(f"{path}: line {number}: its id {own!r} is an earlier question's")
        seen.add(own)


def local_task(lm_eval: Path, folder: Path, data_path: str, train_path: str | None) -> str:
    """Write lm-eval's own ``arc_challenge``, pointed at local files, into ``folder``; returns the task's name."""
    settings: dict[str, Any] = {}
    for name in ("arc_easy.yaml", "arc_challenge.yaml"):
        settings |= yaml.safe_load((lm_eval / "tasks" / "arc" / name).read_text(encoding="utf-8"))
    for name in ("include", "tag", "dataset_name", "validation_split", "training_split"):
        settings.pop(name, None)
    files = {"test": str(Path(data_path).resolve())}
    if train_path:
        files["train"] = str(Path(train_path).resolve())
        settings["training_split"] = "train"
    settings |= {"task": LOCAL_TASK, "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
    save_text(folder / f"{LOCAL_TASK}.yaml", yaml.safe_dump(settings, sort_keys=False))
    return LOCAL_TASK


def model_flags(policy: AnsweringConfig, config: ArcConfig) -> list[str]:
    """lm-eval's name for the model, and its arguments."""
    if policy.base_url:
        if not config.tokenizer:
            raise InputError("--base_url needs --tokenizer, the served model's tokenizer (hub id or folder)")
        arguments = {
            "model": policy.model,
            "base_url": f"{policy.base_url.rstrip('/')}/completions",
            "tokenizer": model_path(config.tokenizer),
            "tokenizer_backend": "huggingface",
            "num_concurrent": policy.concurrency,
        }
        return ["--model", "local-completions", "--model_args", _joined(arguments)]
    path, device = model_path(policy.model), policy.device or best_device()
    dtype = str(named_dtype(policy.dtype, device)).removeprefix("torch.")
    arguments = {"pretrained": model_path(base_of(path)), "dtype": dtype}
    if is_adapter(path):
        arguments["peft"] = path
    flags = ["--model", "hf", "--model_args", _joined(arguments), "--device", device]
    return [*flags, "--batch_size", str(policy.batch_size)]


def _joined(arguments: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in arguments.items())


@command
def main() -> None:
    config, policy = parse(ArcConfig, AnsweringConfig)
    check_output(config.output_path)
    lm_eval = Path(str(optional_package("lm_eval").__file__)).parent
    for path in filter(None, (config.data_path, config.train_path)):
        check_questions(path)
    folder = Path(f"{config.output_path}.lm_eval").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    task = local_task(lm_eval, folder, config.data_path, config.train_path) if config.data_path else "arc_challenge"
    identity = policy.model if policy.base_url else model_identity(policy.model)
    run = folder / fingerprint([identity, asdict(policy), asdict(config), lm_eval.stat().st_mtime_ns])
    model = model_flags(policy, config)
    command_line = [sys.executable, "-m", "lm_eval", "run", *model, "--tasks", task]
    command_line += ["--include_path", str(folder), "--output_path", str(run), "--log_samples", "--seed", "42"]
    cache = folder / fingerprint([identity, model])
    command_line += ["--num_fewshot", str(config.num_fewshot), "--use_cache", str(cache)]
    command_line += ["--limit", str(config.limit)] if config.limit else []
    # In its own folder: `-m` puts the current one on the path, where an evaluate.py would hide the library evaluate.
    if subprocess.run(command_line, cwd=folder, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}).returncode:
        raise InputError(f"lm-eval failed; it says why above ({' '.join(command_line)})")

    samples = load_json(max(run.rglob(f"samples_{task}_*.jsonl"), key=lambda path: path.stat().st_mtime_ns))
    samples.sort(key=lambda row: row["doc_id"])
    names = {row["doc_id"]: str(row["doc"].get("id") or row["doc_id"]) for row in samples}
    figures = {
        metric: Figure.mean({names[row["doc_id"]]: row[metric] for row in samples}) for metric in ("acc", "acc_norm")
    }
    totals = load_json(max(run.rglob("results_*.json"), key=lambda path: path.stat().st_mtime_ns))
    save_result(
        config,
        f"on {len(samples)} questions of ARC-Challenge",
        task="ultrafeedback",
        benchmark="arc_challenge",
        figures=figures,
        responses={names[row["doc_id"]]: row["doc"]["choices"]["text"][_chosen(row)] for row in samples},
        settings={**asdict(policy), "identity": identity},
        extra={"lm_eval": {"version": totals.get("lm_eval_version"), "results": totals["results"][task]}},
    )
    print_next_step(config.output_path)


def _chosen(row: dict[str, Any]) -> int:
    """The index of the likeliest choice."""
    likelihoods = [float(reply[0]) for reply in row["filtered_resps"]]
    return likelihoods.index(max(likelihoods))


if __name__ == "__main__":
    main()
