"""What the report reads: partial, resumed, hostile and broken files; how runs are grouped; how figures are printed."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from evaluation.report import main
from evaluation.reporting import packs, training
from evaluation.reporting.assemble import assemble
from evaluation.reporting.comparing import load_results
from evaluation.reporting.runs import load_run
from evaluation.reporting.wording import show, show_change, show_interval, wording
from tests import report_files
from tests.injuries import injured, read_or_refused
from tests.report_files import HOSTILE, hand_made, pack_of, result_file, unpack, write_hostile, write_run
from text2grad.errors import InputError
from text2grad.records import load_json, save_json


def test_a_run_that_is_still_going_is_read_as_far_as_it_has_come(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(2)])
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 3, "delt')
    run = load_run(folder)
    assert [row["step"] for row in run.metrics] == [1, 2] and [rollout.step for rollout in run.rollouts] == [1, 2]
    told = "the last line of {}.jsonl is not finished and was left out"
    assert run.notes == [told.format("metrics"), told.format("rollouts")]
    report, *_ = assemble([run], [])
    assert any("is not finished" in item for item in report["cautions"])


def test_steps_that_a_resumed_run_repeats_count_once(tmp_path):
    rollouts = [hand_made(1), hand_made(2, response="Good old"), hand_made(3), hand_made(2), hand_made(3)]
    folder = write_run(tmp_path / "run", rollouts)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "delta/mean": 0.7}) + "\n")
    run = load_run(folder)
    assert [rollout.step for rollout in run.rollouts] == [1, 2, 3]
    assert [rollout.response for rollout in run.rollouts] == ["Good bad"] * 3
    assert run.series("delta/mean") == {1: 0.0, 2: 0.7, 3: 0.0}


def test_means_are_of_the_critics_delta_and_not_of_penalties(tmp_path):
    """The rewards of ``hand_made`` hold a penalty of 6 on the last token, its δ none."""
    with_delta = write_run(tmp_path / "spans", [hand_made(1), hand_made(2, deltas=None, error="no reply")])
    without = write_run(tmp_path / "scalar", [hand_made(1, deltas=None)], method="ppo_scalar")
    groups = training.variants([load_run(with_delta), load_run(without)])
    packed, _ = packs.packs(groups, [], 100)
    index = unpack(packed["index"])
    assert [run["measure"] for run in index["runs"]] == ["δ", "reward"]
    assert index["columns"]["mean"] == [0.0, None, -2.0]
    assert [row[2:4] for row in unpack(packed["numbers-0"])] == [
        [[1, -1, 0], [1, -1, -6]], [None, [1, -1, -6]], [None, [1, -1, -6]]
    ]  # fmt: skip


def test_figures_of_other_stages_are_shown_with_their_intervals(tmp_path):
    annotation = {"spans": {"unmatched_rate": 0.0134, "kept": 201}, "usage": {"cost_usd_per_record": 0.00111}}
    reward_model = {"task": "slf5k", "parse_rate": {"value": 0.98, "low": 0.95, "high": 1.0, "n": 50}}
    for name, value in (("annotation", annotation), ("reward_model", reward_model)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    args = ["--annotation", f"{tmp_path}/annotation.json", "--reward_model", f"{tmp_path}/reward_model.json"]
    run = write_run(tmp_path / "run", [hand_made(1, new_logprobs=None)])  # nothing was rescored
    main([str(run), *args, "--output", f"{tmp_path}/report.html"])
    page = (tmp_path / "report.html").read_text()
    assert ">0.0134<" in page and ">0.00111<" in page and "0.95 to 1" in page


def test_seeds_are_one_variant_and_settings_are_not(tmp_path):
    def run(name: str, **about):
        return load_run(write_run(tmp_path / name, [hand_made(1)], **about))

    runs = [
        run("a", seed=1, config={"scheme": "uniform", "seed": 1, "output_dir": "x"}, critic="runs/seed1/rm"),
        run("b", seed=2, config={"scheme": "uniform", "seed": 2, "vllm_url": ["http://h:2"]}, critic="runs/seed2/rm"),
        run("c", seed=1, config={"scheme": "decay", "seed": 1, "output_dir": "z"}, critic="runs/seed1/rm"),
        run("d", seed=1, method="grpo"),
    ]
    groups = training.variants(runs)
    schemes = {f"Text2Grad (scheme {scheme})": seeds for scheme, seeds in (("uniform", [1, 2]), ("decay", [1]))}
    assert {group.label: [run.seed for run in group.runs] for group in groups} == {**schemes, "GRPO": [1]}
    changes = [
        {"changes": [{"from_step": 2, "settings": {"max_steps": 2, "save_every": 1}}], "config": {"max_steps": 1}},
        {"config": {"max_steps": 2}},
        {"changes": [{"from_step": 2, "settings": {"learning_rate": 0.1}}], "config": {"max_steps": 2}},
    ]
    goes_on = [run(f"{seed}/on", seed=seed, **about) for seed, about in enumerate(changes)]
    assert [[run.seed for run in group.runs] for group in training.variants(goes_on)] == [[0, 1], [2]]
    many = [run(f"{name}/policy", config=dict.fromkeys("xyz", name)) for name in ("by_rules", "learnt")]
    labels = [group.label for group in training.variants(many)]
    assert labels == ["Text2Grad (by_rules/policy)", "Text2Grad (learnt/policy)"]


def test_code_is_labelled_as_code_and_tokens_that_share_a_character_keep_their_places(tmp_path):
    folder = report_files.write_code_run(tmp_path / "code")
    packed, _ = packs.packs(training.variants([load_run(folder)]), [], 100)
    index, (code, _, _, good, poor, _) = unpack(packed["index"]), unpack(packed["texts-0"])[0]
    assert index["runs"][0]["spans"]["good"] == "improvable" and index["runs"][0]["spans"]["goodValue"] == 0
    assert [code[s:e] for s, e in poor] == ["return n % 2 == 1"]
    assert [code[s:e] for s, e in good] == ["print(is_even(2))"]
    gaps, lengths, *_ = unpack(packed["numbers-0"])[0]
    ends = np.cumsum(np.add(gaps, lengths))
    spans = np.stack([ends - lengths, ends], axis=1).tolist()
    assert spans[:2] == [[0, 1], [0, 1]]
    assert spans == load_json(folder / "rollouts.jsonl")[0]["spans"]


def test_settings_that_changed_on_the_way_are_told(tmp_path):
    changes = [{"from_step": 2, "settings": {"learning_rate": 0.001}}]
    run = load_run(write_run(tmp_path / "run", [hand_made(1), hand_made(2)], changes=changes))
    assert any("from step 2 on: learning_rate 0.001" in item for item in assemble([run], [])[0]["cautions"])


def test_hostile_text_stays_text(tmp_path):
    run, result = write_hostile(tmp_path)
    output = tmp_path / "report.html"
    main([str(run), "--results", str(result), "--output_path", str(output)])
    page = output.read_text()
    assert "&lt;img src=x onerror=window.pwned=1&gt;" in page
    assert "<img src=x" not in page and "<script>window" not in page and "<b>run" not in page
    assert pack_of(page, "texts-0")[0][0] == HOSTILE.replace("\ud83d", "\ufffd")


def test_a_file_never_names_code_to_run(tmp_path, refused):
    """A task's module is imported where the command names it, and nowhere else."""
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    run = write_run(tmp_path / "run", [hand_made(1)], task="mine", task_source=str(tmp_path / "mine.py"))
    named = write_run(tmp_path / "named", [hand_made(1)], task=str(tmp_path / "mine.py"))
    result = Path(result_file(tmp_path / "r.json", "base", {"1": {"acc": 1.0}}))
    save_json(result, {**json.loads(result.read_text()), "task": "mine", "task_source": str(tmp_path / "mine.py")})
    for arguments in ([run], [named], ["--results", result]):
        assert "--task FILE.py" in refused(main, *arguments, "--output_path", tmp_path / "report.html")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("name", "content", "told"), [
    ("run.json", None, "no such file; give the output folder"), ("run.json", "{", "not JSON"),
    ("run.json", '{"task": "x", "method": "m", "seed": 1}', "--task"),
    ("run.json", '{"task": "slf5k", "method": "m", "seed": 1.5}', "seed"),
    ("run.json", '{"task": "slf5k", "method": "m", "seed": 1, "changes": 5}', "changes"),
    ("metrics.jsonl", None, "cannot be read"), ("metrics.jsonl", "", "no finished step"),
    ("metrics.jsonl", '{"step": 1}\n{]\n{"step": 3}\n', "line 2 is not JSON"),
    ("metrics.jsonl", f'{{"step": {10**30}}}\n', "line 1: 'step'"),
    ("metrics.jsonl", '{"step": 1, "\xff": 1}\n', "line 1 is not JSON"),
])  # fmt: skip
def test_a_bad_run_is_refused_with_its_file_and_place(tmp_path, name, content, told):
    path = write_run(tmp_path / "run", [hand_made(1)]) / name
    path.unlink() if content is None else path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as error:
        load_run(path.parent)
    assert str(path) in str(error.value) and told in str(error.value)


@pytest.mark.parametrize("changes", [
    {"rewards": [1, 1]}, {"rewards": [1e300, 0, 0]}, {"spans": [[0, 4], [4, 8], [8, 99]]}, {"response": None},
    {"spans": [[0, 4], [8, 4], [8, 8]]}, {"advantages": ["a", 1, 1]}, {"good": "Good"},
])  # fmt: skip
def test_a_bad_rollout_is_refused_with_its_line(tmp_path, changes):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(1, **changes)])
    with pytest.raises(InputError, match=f"line 2: .*{min(changes)}"):
        load_run(folder)


@pytest.mark.parametrize("changes", [
    {"system": 3}, {"settings": []}, {"metrics": {"acc": {"value": "high"}}}, {"records": {"1": {"acc": [1]}}},
    *({"statistics": {"acc": {"combine": "ratio", "rows": {"1": row}}}} for row in ("1 x", "1 2 3")), {"step": -1},
])  # fmt: skip
def test_a_bad_result_file_is_refused_with_its_place(tmp_path, changes):
    path = Path(result_file(tmp_path / "r.json", "base", {"1": {"acc": 1.0}}))
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError) as error:
        load_results([str(path)])
    assert str(path) in str(error.value) and min(changes) in str(error.value)


def test_feedback_that_cannot_be_read_is_refused_with_its_file(tmp_path, refused):
    values = {"1": {"mean_delta": 0.1}}
    files = [Path(result_file(tmp_path / f"{name}.json", name, values)) for name in ("base", "text2grad")]
    for file in files:
        save_json(file, {**json.loads(file.read_text()), "feedback": {"1": {"textual_feedback": 3}}})
    said = refused(main, "--results", *files, "--output_path", tmp_path / "report.html")
    assert str(tmp_path) in said and "feedback" in said


@pytest.mark.parametrize("value", ["1e308", "-1e308", "Infinity", "NaN", '"text"', "[1]", "null", "true"])
def test_values_that_are_no_numbers_are_gaps(tmp_path, value):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(2)])
    first = '{"step": 1, "entropy": 1.0, "seconds/rollout": 2, "lr": VALUE}\n'
    second = '{"step": 2, "entropy": VALUE, "seconds/rollout": VALUE}\n'
    (folder / "metrics.jsonl").write_text((first + second).replace("VALUE", value))
    report, (variant,), _ = assemble([load_run(folder)], [])
    assert [chart["name"] for chart in report["training"][0]["charts"]] == ["entropy", "seconds/total"]
    assert training.curve(variant, "entropy")["steps"] == training.curve(variant, "seconds/total")["steps"] == [1]


def test_the_command_exits_with_two_and_writes_nothing(tmp_path, refused):
    run = write_run(tmp_path / "run", [hand_made(1)])
    result, other = (
        result_file(tmp_path / f"{name}.json", name, {"1": {"acc": 1.0}}, prompts={"1": f"{name} post"})
        for name in "ab"
    )
    output = tmp_path / "out" / "report.html"
    for args, told in [
        ([run, run], "given twice; name it once"),
        (["--results", result, result], "given twice; name it once"),
        (["--results", result, other], "b.json: its prompt '1' is another one"),
        ([], "nothing to report; give run folders, or result files with --results"),
        ([run, "--baseline", "dpo"], "--baseline 'dpo'"),
        ([run, "--results", run / "run.json"], "give a result file"),
        ([run, "--annotation", tmp_path / "none.json"], "none.json: no such file"),
    ]:
        assert told in refused(main, *args, "--output_path", output)
        assert not list(output.parent.glob("*")) if output.parent.exists() else True
    assert "is not an HTML file" in refused(main, run, "--output", tmp_path / "report.pdf")


@pytest.mark.parametrize(
    ("value", "style", "text", "change"),
    [
        (-0.004, "signed", "0.00", "0.00"), (0.314, "signed", "+0.31", "+0.31"), (-0.2, "share", "−20.0 %", "−20.0 pp"),
        (3e-7, "number", "3.0e−7", "+3.0e−7"), (12345.6, "number", "12,346", "+12,346"), (12, "count", "12", "+12"),
        (1.5, "seconds", "1.50 s", "+1.50 s"), (float("nan"), "number", "–", "–"), (None, "share", "–", "–"),
    ],
)  # fmt: skip
def test_figures_are_written_for_people(value, style, text, change):
    assert (show(value, style), show_change(value, style)) == (text, change)
    assert show_interval(-0.4, 0.3, "share") == "−40.0 to 30.0 %"


def test_more_tests_and_samples_keep_the_direction_of_pass_at_k():
    for name in ("pass@5", "plus_pass@1"):
        assert (wording(name).better, wording(name).style) == (1, "share")


def test_injured_run_folders_are_read_or_named(tmp_path):
    folder = write_run(tmp_path / "run", [hand_made(1), hand_made(2)])
    whole = {path: path.read_text() for path in sorted(folder.iterdir())}

    def read(chance: random.Random) -> None:
        path = chance.choice(list(whole))
        path.write_bytes(injured(chance, whole[path]))
        try:
            load_run(folder)
        finally:
            path.write_text(whole[path])

    read_or_refused(600, 8, read, InputError, told=str(folder))
