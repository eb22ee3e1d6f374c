"""A policy's programs for HumanEval or MBPP, in EvalPlus' own format.

    python evaluation/kodcode/evalplus_samples.py --dataset humaneval --base_only true --model smollm2 \\
        --output_path samples.jsonl

Each line holds ``task_id``, ``solution`` (cut out of the answer as EvalPlus' own ``sanitize`` does) and the whole
``response``. A policy that was trained with words of its own (``--policy_prompt``) is asked in these. The same command
continues an interrupted run.
"""

from dataclasses import MISSING, asdict, dataclass
from pathlib import Path

from evaluation.generate import BenchmarkConfig, answer_benchmark, check_samples
from evaluation.kodcode.evalplus_data import Dataset, load_problems
from evaluation.optional_packages import optional_package
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.models.answering import AnsweringConfig, SamplingConfig
from text2grad.prompts import load_prompt
from text2grad.records import check_output, prompt_of, save_json
from text2grad.tasks.commands import quoted, say_next
from text2grad.tasks.kodcode import KodCode

ANSWER_TOKENS = 768
"""By default, as in EvalPlus' own generation."""


@dataclass(kw_only=True)
class EvalPlusSamplesConfig(BenchmarkConfig):
    """Which problems, and how many tries at each."""

    dataset: Dataset = setting(MISSING, "the benchmark")
    data_path: str | None = setting(None, "its problems in EvalPlus' format (see the README)", "--dataset_path")
    base_only: bool = setting(False, "without the additional tests of HumanEval+ and MBPP+")
    num_samples: int = setting(1, "programs per problem")

    def __post_init__(self) -> None:
        if not self.output_path.endswith(".jsonl"):
            raise InputError(f"--output_path {self.output_path}: must end in .jsonl, which EvalPlus reads")


@command
def main() -> None:
    config, answering, sampling = parse(EvalPlusSamplesConfig, AnsweringConfig, SamplingConfig)
    check_output(config.output_path)
    check_samples(config.num_samples, sampling)
    problems = dict(list(load_problems(config.dataset, config.data_path, config.base_only).items())[: config.limit])
    sanitize = optional_package("evalplus.sanitize").sanitize
    name = {"humaneval": "human_eval_prompt.txt", "mbpp": "mbpp_prompt.txt"}[config.dataset]
    prompt = load_prompt(Path(__file__).parent / name, required=("prompt",), offered=("prompt",))
    prompts = {
        f"{task_id}@{sample}": prompt.fill({"prompt": problem["prompt"].strip()})
        for task_id, problem in problems.items()
        for sample in range(config.num_samples)
    }
    task, rows = KodCode(), []
    for key, reply in answer_benchmark(prompts, task, config, answering, sampling, ANSWER_TOKENS).items():
        task_id = prompt_of(key)
        solution = sanitize(task.code(reply["text"]), problems[task_id]["entry_point"])
        about = {name: reply[name] for name in asdict(sampling)} | {"model": answering.model}
        about |= {name: reply[name] for name in ("tokens", "finished")}
        rows.append({"task_id": task_id, "solution": solution, "response": reply["text"], "generation": about})
    save_json(config.output_path, rows)
    finished = sum(row["generation"]["finished"] for row in rows)
    print(f"{len(rows)} programs for {len(problems)} problems, {finished} ended by themselves -> {config.output_path}")
    flags = " --base_only" if config.base_only else ""
    say_next(
        f"python evaluation/kodcode/evalplus_score.py --dataset {config.dataset}{flags} "
        f"--samples {quoted(config.output_path)} --system NAME --output_path NAME.result.json"
    )


if __name__ == "__main__":
    main()
