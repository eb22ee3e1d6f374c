"""The recipes' commands are ones that the stages take; a campaign runs the most telling first and goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from nl_gradient_policy_optimization.config import PolicyConfig
from recipes.campaign import Campaign, CampaignConfig, over_seeds
from tests.processes import ROOT, run_command
from text2grad.configs import parse
from text2grad.errors import InputError
from text2grad.records import load_json

METHODS = {
    "slf5k": {"sft", "text2grad", "ppo", "ppo_delta", "prm_ppo", "dpo", "reflect"},
    "kodcode": {"base", "sft", "text2grad", "ppo", "ppo_delta", "prm_ppo", "dpo", "reflect"},
    "ultrafeedback": {"sft", "text2grad", "ppo", "ppo_delta", "dpo", "reflect"},
}
"""The systems of each task's table; UltraFeedback has no steps, so no PRM-PPO."""


def recipe(task: str, *flags: str) -> str:
    return run_command("bash", ROOT / "recipes" / f"{task}.sh", *flags, timeout=3000).stdout


@pytest.mark.parametrize("task", METHODS)
@pytest.mark.parametrize("flags", [("--run_dir", "runs/my run"), ("--smoke",)], ids=["full", "smoke"])
def test_each_line_is_a_command_of_its_own(task, flags):
    printed = recipe(task, "--print", *flags).splitlines()
    lines = [shlex.split(line.removeprefix("$ ")) for line in printed if line.startswith("$ ")]
    assert len(lines) > 15
    for line in lines:
        assert line[0] in ("python", "bash") and (ROOT / line[1]).is_file()
        assert not any(word.startswith("run/") for word in line)  # of "my run"
        if line[1].endswith("3_metrics.py"):  # tokens are those of the policy that is to be trained
            assert Path(line[line.index("--tokenizer") + 1]).name in ("Llama-3.1-8B-Instruct", "tiny_model")
        if line[2:4] == ["pairs", "slf5k"]:  # whose annotator is not asked, and paid, again
            assert Path(line[line.index("--data_path") + 1]).name == "annotated.json"
    policies = [line for line in lines if line[1].endswith(f"train_{task}.sh") and "policy" in line[1]]
    policies += [line for line in lines if line[1].endswith("run.sh") and line[2] in ("ppo", "ppo_delta", "prm_ppo")]
    assert {Path(line[line.index("--output_dir") + 1]).name for line in policies} == METHODS[task] & {
        "text2grad", "ppo", "ppo_delta", "prm_ppo"
    }  # fmt: skip
    for line in policies:
        words = line[4:] if line[1].endswith("run.sh") else line[2:]
        if "--reward_model" in words:
            at = words.index("--reward_model")
            words = words[:at] + words[at + 2 :]
        own = str(ROOT / "nl_gradient_policy_optimization" / task / "config.yaml")
        parse(PolicyConfig, args=["--config", own, *words]).check()
    measured = {line[line.index("--system") + 1] for line in lines if "--system" in line}
    assert measured == METHODS[task]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", METHODS)
def test_the_small_version_measures_every_method_and_repeats_nothing(task, tmp_path):
    """Every method is in the report, side by side, and two processes sampled what policies learnt."""
    recipe(task, "--smoke", "--run_dir", str(tmp_path))
    results = [json.loads(file.read_text()) for file in (tmp_path / "evaluation").rglob("result.json")]
    assert {result["system"] for result in results} == METHODS[task]
    report = json.loads((tmp_path / "report.json").read_text())
    assert {system["name"] for system in report["tables"][0]["systems"]} == METHODS[task]
    assert "<html" in (tmp_path / "report.html").read_text()[:500]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert bool(manifest["shared"]) == (task == "slf5k")
    for method in {"text2grad", "ppo", "ppo_delta", "prm_ppo"} & METHODS[task]:
        rows = [json.loads(line) for line in (tmp_path / method / "rollouts.jsonl").read_text().splitlines()]
        assert {row["step"] for row in rows} == {1, 2} and len(rows) == 2 * 2 * 2
    assert list(tmp_path.rglob("adapter_model.safetensors"))
    kept = {file: file.read_bytes() for file in tmp_path.rglob("rollouts.jsonl")}
    assert kept
    recipe(task, "--smoke", "--run_dir", str(tmp_path))
    assert {file: file.read_bytes() for file in kept} == kept


# Campaigns


STUB = """
import json, os, pathlib, sys, time
out, value = pathlib.Path(sys.argv[1]), float(sys.argv[2])
seconds = float((out.parent.parent / "seconds.txt").read_text())
with open(out.parent / "order.txt", "a") as file:
    print(out.name, file=file)
if sys.argv[3:] != ["--fast"] and not (out / "begun").exists():
    (out / "begun").touch()
    time.sleep(seconds)
figure = {"value": value, "low": value, "high": value}
less = {"pass@1": {"difference": 0.25, "low": 0, "high": 0.5, "p": 0.5}}
compared = {} if out.name == "base" else {"compared_with": {"system": "base", "differences": less}}
result = {"metrics": {"pass@1": figure}, "errors": {"TypeError": 1}, **compared}
result |= {"threads": os.environ["OMP_NUM_THREADS"], "flags": sys.argv[3:4]}
(out / "result.json").write_text(json.dumps(result))
"""


def campaign(folder: Path, seconds: float = 0, **settings) -> Campaign:
    (folder / "stub.py").write_text(STUB)
    (folder / "seconds.txt").write_text(str(seconds))
    about = {"sizes": {"size": 1}, "prepare": ["python -c pass {data}"], "train": ["python -c pass {policy} {seed}"]}
    about["measure"] = [f"python {folder}/stub.py {{out}} 0.{{size}} {{flags}} {{against}}"]
    about["methods"] = {"base": {"train": [], "policy": "{model}"}, "first": "--slow={size}", "second": "--fast"}
    given = {"data_path": "data.json", "output_dir": str(folder / "my run"), "model": "m", "seeds": [1, 2]}
    return Campaign(CampaignConfig(**{**about, **given, **settings}))


def test_all_methods_of_a_seed_come_first_and_nothing_runs_twice(tmp_path, capsys):
    assert campaign(tmp_path, set=["size=7"]).run()
    order = (tmp_path / "my run/order.txt").read_text().split()
    assert order == ["base", "first-seed1", "second-seed1", "first-seed2", "second-seed2"]
    figures = load_json(tmp_path / "my run/figures.json")
    assert list(figures) == order and figures["base"]["metrics"]["pass@1"]["value"] == 0.7
    assert load_json(tmp_path / "my run/first-seed2/result.json")["flags"] == ["--slow=7"]
    shown = capsys.readouterr().out
    assert "first-seed1   0.700 [0.700, 0.700]  0.250 [0.000, 0.500]" in shown
    with pytest.raises(InputError, match=r"base: begun with other settings .* 0.7.* then, .* 0.1.* now"):
        campaign(tmp_path).run()
    with pytest.raises(InputError, match=r"run: begun with other settings .* data.json.* then, .* other.json.* now"):
        campaign(tmp_path, data_path="other.json", set=["size=7"]).run()
    assert campaign(tmp_path, seeds=[1, 2, 3], only=["second"], set=["size=7"]).run()
    assert (tmp_path / "my run/order.txt").read_text().split() == [*order, "second-seed3"]
    (tmp_path / "my run/figures.json").unlink()  # killed before it was written
    assert campaign(tmp_path, set=["size=7"]).run()
    assert list(load_json(tmp_path / "my run/figures.json")) == [*order, "second-seed3"]


@pytest.mark.parametrize("name", ["posts.json", "posts/train.json"])
def test_other_data_by_the_same_name_are_refused(tmp_path, name):
    (tmp_path / "posts").mkdir()
    data = str(tmp_path / Path(name).parts[0])
    for content in ("{}", "[]"):
        (tmp_path / name).write_text(content)
        run = campaign(tmp_path, data_path=data, only=["first"]).run
        if content == "{}":
            assert run() and run()
    with pytest.raises(InputError, match=r"begun with other settings .*data"):
        run()


def test_a_path_is_one_word_and_a_size_may_be_several(tmp_path):
    made = campaign(tmp_path, data_path="my posts.json", sizes={"size": "1 4"})
    words = made._words('run {data} "{out}/a.json" {policy}/x --k {size} {flags}', {
        "out": "my run/a", "policy": "a b", "flags": "--one '2 3'"
    })  # fmt: skip
    assert words == ["run", "my posts.json", "my run/a/a.json", "a b/x", "--k", "1", "4", "--one", "2 3"]


def test_methods_are_compared_on_the_seeds_they_share():
    def run(value: float) -> dict:
        return {"metrics": {"pass@1": {"value": value}}}

    figures = {"base": run(0.5), "a-seed1": run(0.6), "a-seed2": run(0.8), "b-seed1": run(0.5), "b-seed2": run(0.6)}
    figures |= {"b-seed3": run(0.1), "c-seed9": run(0.2)}
    heading, a, b, c = over_seeds(figures, ["base", "a", "b", "c"], "pass@1")
    assert heading == ["method", "seeds", "pass@1", "less a"]
    assert a[:2] == ["a", 2] and a[2].value == pytest.approx(0.7) and a[3] == ""
    assert b[:2] == ["b", 3] and b[2].value == pytest.approx(0.4)
    assert b[3].n == 2 and b[3].value == pytest.approx(-0.15)
    half = 12.7062 * 0.05  # t of one degree of freedom times the standard error of -0.1 and -0.2
    assert b[3].low == pytest.approx(-0.15 - half, abs=1e-4)
    nothing = {"metrics": {"pass@1": {"value": None, "low": None, "high": None}}}
    assert c[3] == ""
    for figures, method in (({"base": run(0.5)}, "base"), ({"base": nothing, "a-seed1": nothing}, "a")):
        assert over_seeds(figures, [method], "pass@1") == [["method", "seeds", "pass@1", ""]]


def test_time_is_up_and_the_same_command_goes_on(tmp_path):
    begun = time.monotonic()
    assert not campaign(tmp_path, seconds=600, minutes=0.03).run()
    assert time.monotonic() - begun < 60 and not (tmp_path / "my run/first-seed1").exists()
    assert campaign(tmp_path, seconds=0).run()
    assert len(load_json(tmp_path / "my run/figures.json")) == 5


def test_a_signal_ends_the_command_that_runs(tmp_path):
    made = campaign(tmp_path, seconds=600, only=["first"])
    (tmp_path / "my run/base").mkdir(parents=True)
    (tmp_path / "my run/base/begun").touch()

    def interrupt() -> None:
        while not (tmp_path / "my run/first-seed1/begun").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert not made.running


def test_a_failed_run_stops_no_other(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    broken = campaign(tmp_path, jobs=2)
    broken.config.methods["first"] = {"train": ["python -c 1/0"]}
    (tmp_path / "stub.py").write_text(STUB.replace("pass@1", "words"))  # a task without unit tests
    assert not broken.run()
    assert sorted(load_json(tmp_path / "my run/figures.json")) == ["base", "second-seed1", "second-seed2"]
    shown = capsys.readouterr()
    assert "first-seed1 ended with 1" in shown.err and "words less base" in shown.out
    assert load_json(tmp_path / "my run/base/result.json")["threads"] == "3"  # six cores for two runs
    assert campaign(tmp_path, jobs=2).run()  # with the commands mended
    slips = {name: {"train": [line]} for name, line in (("third", "true {ratee}"), ("fourth", "nosuchprogram"))}
    methods = {**slips, **broken.config.methods, "first": None}  # as YAML reads nothing
    assert not campaign(tmp_path, methods=methods, seeds=[1, 3]).run()
    assert (tmp_path / "my run/second-seed3/result.json").is_file()
    assert "None" not in (tmp_path / "my run/first-seed3/commands.json").read_text()
    said = capsys.readouterr().err
    assert re.search("first-seed1: begun with .*; use those, or delete that folder", said)
    assert "there is no {ratee}; the names are" in said and "nosuchprogram cannot be run" in said
    with pytest.raises(InputError, match="--metrics accuracy: the results have words"):
        campaign(tmp_path, metrics=["accuracy"]).run()


def test_a_run_without_a_result_and_a_lone_brace_are_told(tmp_path, capsys):
    assert not campaign(tmp_path, measure=["true"]).run()
    assert "base: no command wrote result.json there" in capsys.readouterr().err
    for line in ("true }", "true {}"):
        with pytest.raises(InputError, match="a brace that holds no name"):
            campaign(tmp_path, prepare=[line]).run()


@pytest.mark.parametrize(
    "settings",
    [{"only": ["third"]}, {"set": ["sise=3"]}, {"set": ["size"]}, {"methods": {}}, {"seeds": [1, 1]}],
)
def test_names_that_are_not_there_or_there_twice_are_refused(tmp_path, settings):
    with pytest.raises(InputError, match=r"first, second|size|methods lacks base|names one twice"):
        campaign(tmp_path, **settings)


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "recipes").glob("*.yaml")))
def test_a_recipes_commands_are_whole(tmp_path, name):
    """Every name in braces has a value, and every script is there."""
    file = ROOT / f"recipes/{name}.yaml"
    args = ["--config", str(file), "--data_path", "d.json", "--output_dir", str(tmp_path)]
    made = Campaign(parse(CampaignConfig, args=args))
    names = {**made.names, "seed": 1, "name": "n", "out": "o", "policy": "p", "flags": "", "against": ""}
    config = made.config
    own = [line for about in config.methods.values() if isinstance(about, dict) for line in about["train"]]
    lines = [*config.prepare, *config.train, *config.measure, *own]
    for line in lines:
        words = line.format(**names).split()
        assert words[0] in ("mkdir", "cp") or (ROOT / words[1]).is_file(), line
