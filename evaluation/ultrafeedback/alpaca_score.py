"""AlpacaEval 2.0 by the package alpaca_eval: win rate against reference outputs, judged by log-probabilities.

    python evaluation/ultrafeedback/alpaca_score.py --outputs outputs.json --system base \\
        --reference_path alpaca_eval_gpt4_baseline.json --judge openai:gpt-4-1106-preview \\
        --output_path alpaca.result.json

Prompt, order of the two answers, weighting of the judge's log-probabilities and win rate are alpaca_eval's (its
annotator ``weighted_alpaca_eval_gpt4_turbo``). The requests go through this project's client, so that another server
can judge (it must give log-probabilities), money is bounded, and nothing is asked twice.

``--length_controlled`` adds the length-controlled win rate; alpaca_eval fetches what it needs for that from its hub,
and it is defined for AlpacaEval's own 805 instructions alone.
"""

import importlib.metadata
import importlib.util
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from packaging.version import parse as parse_version
from tqdm.auto import tqdm

from evaluation.optional_packages import optional_package
from evaluation.results import Figure, ResultConfig, print_failures, print_next_step, save_result
from evaluation.ultrafeedback.alpaca_outputs import load_outputs, reference_path
from text2grad.configs import parse, setting
from text2grad.endpoints.client import ChatClient, ChatError
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.settings import Endpoint
from text2grad.errors import InputError, StopRunError, command
from text2grad.records import check_output, fingerprint, save_text
from text2grad.tasks.base import content_id

ANNOTATOR = "weighted_alpaca_eval_gpt4_turbo"
_ENOUGH = 20  # pairs that tell whether the judge gives log-probabilities at all


@dataclass(kw_only=True)
class AlpacaScoreConfig(ResultConfig, Endpoint):
    """What is compared, and who judges."""

    outputs: str = setting(MISSING, "the system's outputs, in AlpacaEval's format", "--data_path")
    judge: str = setting(MISSING, "openai:MODEL, or http://HOST:PORT/v1#MODEL; it must give log-probabilities")
    reference_path: str | None = setting(None, "the other side's outputs; by default AlpacaEval 2.0's")
    length_controlled: bool = setting(False, "add the length-controlled win rate, which needs the hub")


def import_alpaca_eval() -> ModuleType:
    """The package; it asks setuptools' pkg_resources for versions, which setuptools has dropped."""
    if "pkg_resources" not in sys.modules and importlib.util.find_spec("pkg_resources") is None:
        stand_in = ModuleType("pkg_resources")
        vars(stand_in).update(parse_version=parse_version, get_distribution=importlib.metadata.distribution)
        sys.modules["pkg_resources"] = stand_in
    package = optional_package("alpaca_eval")
    logging.getLogger().setLevel(logging.WARNING)  # it turns on the log of every request
    return package


def completions_by(client: ChatClient, failures: dict[str, str]):
    """alpaca_eval's ``fn_completions``, answered by ``client``; ``failures`` gets the reasons by prompt."""
    from alpaca_eval.utils import prompt_to_chatml

    mute = "its reply has no log-probabilities"  # as where a filter took it away

    def ask(prompt: str) -> dict[str, Any] | None:
        try:
            reply = client.complete(prompt_to_chatml(prompt), logprobs=5, max_tokens=1, scope=fingerprint(prompt))
        except ChatError as error:
            failures[prompt] = str(error)
            return None
        if not reply.logprobs:
            failures[prompt] = mute
            return None
        tokens = [
            {"top_logprobs": [{"token": token, "logprob": value} for token, value in choice.items()]}
            for choice in reply.logprobs
        ]
        return {"text": reply.text, "logprobs": {"content": tokens}}

    def complete(prompts: Sequence[str], **_: Any) -> dict[str, list]:
        replies: list[dict[str, Any] | None] = []
        with client.interruptible(), ThreadPoolExecutor(client.concurrency) as pool:
            for reply in tqdm(pool.map(ask, prompts), total=len(prompts), desc="judge", unit="pair"):
                replies.append(reply)
                if len(replies) in (_ENOUGH, len(prompts)) and not any(replies) and mute in failures.values():
                    told = "gives no log-probabilities, which AlpacaEval weighs"
                    raise InputError(f"{client.base_url}: {client.model} {told}")
        # A failed request is a reply without a known token: alpaca_eval then leaves that pair out.
        nothing = {"text": "", "logprobs": {"content": [{"top_logprobs": []}]}}
        found = [reply or nothing for reply in replies]
        return {
            "completions": [reply["text"] for reply in found],
            "completions_all": found,
            "price_per_example": [0.0] * len(found),
            "time_per_example": [0.0] * len(found),
        }

    return complete


def annotator_file(alpaca_eval: Path, path: Path) -> Path:
    """alpaca_eval's own annotator without its client; returns the YAML file written."""
    folder = alpaca_eval / "evaluators_configs"
    settings = yaml.safe_load((folder / ANNOTATOR / "configs.yaml").read_text(encoding="utf-8"))[ANNOTATOR]
    settings["prompt_template"] = str(folder / settings["prompt_template"])
    for name in ("fn_completions", "completions_kwargs"):
        settings.pop(name)
    save_text(path, yaml.safe_dump({ANNOTATOR: settings}))
    return path


def score_with_alpaca_eval(config: AlpacaScoreConfig) -> dict[str, Any]:
    """Judge, write ``config.output_path``, and return the result."""
    check_output(config.output_path)
    alpaca_eval = import_alpaca_eval()
    own, reference = load_outputs(config.outputs), load_outputs(reference_path(config.reference_path))
    by_instruction = {row["instruction"]: row for row in reference}
    missing = [row["instruction"] for row in own if row["instruction"] not in by_instruction]
    if missing:
        raise InputError(
            f"{config.outputs}: {len(missing)} instructions have no reference output, e.g. {missing[0][:80]!r}"
        )
    against = [by_instruction[row["instruction"]] for row in own]
    name = next((row["generator"] for row in against if row.get("generator")), "reference")
    cache, failures = ReplyCache(f"{config.output_path}.replies.jsonl"), dict[str, str]()
    try:
        client = ChatClient.from_spec(
            config.judge,
            temperature=1.0,  # as alpaca_eval asks: log-probabilities as the model has them
            cache=cache,
            **config.client_options(),
        )
        leaderboard, annotations = alpaca_eval.evaluate(
            model_outputs=[{**row, "generator": config.system, "index": i} for i, row in enumerate(own)],
            reference_outputs=[{**row, "generator": name, "index": i} for i, row in enumerate(against)],
            annotators_config=annotator_file(
                Path(str(alpaca_eval.__file__)).parent, Path(f"{config.output_path}.alpaca_eval.yaml").resolve()
            ),
            name=config.system,
            output_path=None,
            precomputed_leaderboard=None,
            is_return_instead_of_print=True,
            fn_metric="get_length_controlled_winrate" if config.length_controlled else "get_winrate",
            metric_kwargs={"save_weights_dir": None} if config.length_controlled else None,
            sort_by="win_rate",
            annotation_kwargs={"chunksize": None},
            caching_path=None,
            fn_completions=completions_by(client, failures),
        )
    except StopRunError as stop:
        raise InputError(f"{stop}; the replies so far are kept, run the same command again to continue") from None
    finally:
        cache.close()
    result = _result(config, own, annotations, leaderboard.loc[config.system].to_dict(), name, client)
    print_failures(failures, "judgements", "the same command asks again where no reply came")
    print_next_step(config.output_path)
    return result


def _result(
    config: AlpacaScoreConfig,
    own: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    printed: Mapping[str, Any],
    reference: str,
    client: ChatClient,
) -> dict[str, Any]:
    """preference is 1 where the reference surely wins, 2 where the system does."""
    preferred = {row["instruction"]: row["preference"] for row in annotations}
    answers = {content_id("instruction", row["instruction"]): row for row in own}
    scores = {
        key: preferred[row["instruction"]] - 1
        for key, row in answers.items()
        if preferred.get(row["instruction"]) is not None and not math.isnan(preferred[row["instruction"]])
    }
    figures = {
        "win_rate": Figure.mean(scores),
        "discrete_win_rate": Figure.mean(
            {key: float(score > 0.5) + 0.5 * (score == 0.5) for key, score in scores.items()}
        ),
        "characters": Figure.mean({key: len(row["output"]) for key, row in answers.items()}),
        "judge_failures": Figure.mean({key: key not in scores for key in answers}),
    }
    result = save_result(
        config,
        f"against {reference} on {len(own)} instructions, judged by {config.judge}",
        task="ultrafeedback",
        benchmark="alpaca_eval",
        figures=figures,
        responses={key: row["output"] for key, row in answers.items()},
        extra={
            "prompts": {key: row["instruction"] for key, row in answers.items()},
            "baseline": reference,
            "cost_usd": client.budget.spent,
            "alpaca_eval": {name: None if value != value else value for name, value in printed.items()},
        },
    )
    if config.length_controlled:
        print(f"  length-controlled win rate {printed['length_controlled_winrate']:.2f} %")
    return result


@command
def main() -> None:
    score_with_alpaca_eval(parse(AlpacaScoreConfig))


if __name__ == "__main__":
    main()
