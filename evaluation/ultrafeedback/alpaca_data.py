"""AlpacaEval's files: lists of ``{"instruction", "output", "generator", "dataset"}``."""

from typing import Any

from text2grad.errors import InputError
from text2grad.records import load_json


def load_outputs(path: str) -> list[dict[str, Any]]:
    """A system's outputs, checked."""
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
