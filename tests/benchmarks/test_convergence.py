"""The synthetic task knows its truth, noise errs as often as it says, methods run, and a study's figures are right."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.convergence import Study, StudyConfig, draw_study, load_result, reference_of, summary_table, sweep_table
from benchmarks.micro import results
from benchmarks.micro.critic import ProfileCritic
from benchmarks.micro.methods import method_of
from benchmarks.micro.noise import KINDS, NoisyCritic
from benchmarks.micro.policy import BaseSettings, base_policy
from benchmarks.micro.protocol import Protocol, held_out_records
from benchmarks.micro.rewriting import rewrite
from benchmarks.micro.runs import Materials, config_of, run_method, training_prompts
from benchmarks.micro.task import PROFILES, demonstrate, make_record, read_statements, score_statements
from benchmarks.spans import CRITICS
from tests.conftest import ROOT
from text2grad.configs import parse
from text2grad.models import load_tokenizer
from text2grad.records import load_json
from text2grad.token_rewards import token_rewards

NORA = {"id": "nora", "name": "Nora", "notes": {"Job": "baker", "Home": "Porto", "Pet": "parrot"}}
RESPONSE = (
    "Nora is a baker by trade. Nora lives in Turin. It rained all morning. Nora earns a living as a baker. "
    "Nora plays chess with friends. Nora keeps a parr"
)


@pytest.fixture(scope="module")
def materials(tmp_path_factory) -> Materials:
    """A starting policy that has learnt nothing, and a few prompts."""
    folder = tmp_path_factory.mktemp("materials")
    settings = BaseSettings(layers=1, hidden=32, steps=2, batch=4, rewritings=0.5)
    return Materials(base_policy(folder / "base", settings, seed=0), training_prompts(folder / "prompts.json", 20))


def samples(count: int) -> list[tuple[dict, str]]:
    rng = random.Random(5)
    records = [make_record(rng, number) for number in range(count)]
    return [(record, demonstrate(record, rng)) for record in records]


def test_every_kind_of_sentence_is_told_apart():
    statements = read_statements(NORA, RESPONSE)
    assert [s.verdict for s in statements] == ["right", "wrong", "aside", "repeated", "invented", "aside"]
    phrases = [RESPONSE[slice(*s.phrase)] for s in statements if s.phrase]
    assert phrases == ["is a baker by trade", "lives in Turin", "earns a living as a baker", "plays chess with friends"]
    assert score_statements(NORA, RESPONSE) == {"f1": 2 / 9, "precision": 1 / 6, "recall": 1 / 3}
    perfect = "Nora could live on beans. Nora sings to a parrot. Nora has never left Porto. Nora works as a baker."
    assert score_statements({**NORA, "notes": {**NORA["notes"], "Food": "beans"}}, perfect)["f1"] == 1
    assert score_statements(NORA, "") == {"f1": 0, "precision": 0, "recall": 0}


@pytest.mark.parametrize(("notes", "counts"), [(0, {3, 4, 5}), (6, {6})])
def test_training_and_held_out_prompts_have_the_study_s_number_of_notes(tmp_path, notes, counts):
    training = load_json(training_prompts(tmp_path / "prompts.json", 40, notes))
    for records in (training, held_out_records(40, notes)):
        assert {len(record["notes"]) for record in records} == counts


def test_the_critic_says_what_is_wrong():
    feedback = ProfileCritic().feedback_on(NORA, RESPONSE)
    assert feedback.good == ["is a baker by trade"]
    assert feedback.poor[:2] == ["lives in Turin", "It rained all morning"]
    for part in ("home wrong: the notes say Porto", "job twice", "nothing of Nora's sport", "not mention Nora's pet"):
        assert part in feedback.critique
    assert feedback.missing == ["Nora's pet"]
    flipped = NoisyCritic(ProfileCritic(), "flip", 1.0).corrupt(feedback, "p", RESPONSE)
    assert (flipped.good, flipped.missing) == (feedback.poor, feedback.missing)
    assert ProfileCritic().feedback_on(NORA, "Nora lives in Porto.").poor == []


def test_rewards_are_the_truth_token_by_token(materials):
    """What the project's mapping makes of the critic's quotes is what the statements' characters say."""
    tokenizer, checked = load_tokenizer(materials.base), 0
    for record, text in samples(300):
        phrases = [text[slice(*s.phrase)] if s.phrase else s.text for s in read_statements(record, text)]
        if len(set(phrases)) < len(phrases):
            continue  # a phrase said twice cannot be quoted apart: its first place is blamed too
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        found = token_rewards(ids, tokenizer, ProfileCritic().feedback_on(record, text), PROFILES)
        worth = [0.0] * len(text)
        for s in read_statements(record, text):
            start, end = s.phrase or (s.start, s.start + len(s.text.rstrip(".")))
            worth[start:end] = [1.0 if s.verdict == "right" else -1.0] * (end - start)
        for (start, end), value in zip(found.spans, found.values, strict=True):
            visible = [char for char in range(start, end) if not text[char].isspace()] or range(start, end)
            values = {worth[char] for char in visible}
            assert value == (values.pop() if len(values) == 1 else 0.0)
        assert found.unmatched == 0
        checked += 1
    assert checked > 200


@pytest.mark.parametrize("kind", KINDS)
def test_noise_spoils_the_share_that_it_names(kind):
    pairs = [(record, text) for record, text in samples(300) if len(text.split()) > 12]
    for share in (0.0, 0.25, 1.0):
        critic = NoisyCritic(ProfileCritic(), kind, share)
        corrupted = kept = 0
        for record, text in pairs:
            clean = ProfileCritic().feedback_on(record, text)
            noisy = critic([PROFILES.prompt(record)], [text], [record])[0]
            assert noisy == critic([PROFILES.prompt(record)], [text], [record])[0]
            before = [(quote, True) for quote in clean.good] + [(quote, False) for quote in clean.poor]
            after = [(quote, True) for quote in noisy.good] + [(quote, False) for quote in noisy.poor]
            assert all(quote in text for quote, _ in after)
            assert len(after) == len(before)
            assert sorted(len(q.split()) for q, _ in after) == sorted(len(q.split()) for q, _ in before)
            kept += sum(min(before.count(item), after.count(item)) for item in set(before))
            corrupted += len(before)
        assert 1 - kept / corrupted == pytest.approx(share, abs=0.06)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    """Runs of two steps on a model that hardly learnt."""
    folder = tmp_path_factory.mktemp("study")
    config = StudyConfig(
        study="small", methods=["text2grad", "ppo_sum", "flip-50"], learning_rates=[1e-4, 1e-3], sweep_seeds=[101],
        seeds=[1], steps=2, rollouts=4, evaluate_every=1, held_out=2, prompts=20, base_steps=2,
        max_response_tokens=16, output_dir=str(folder / "runs"), report_dir=str(folder / "figures"),
    )  # fmt: skip
    config.check()
    return Study(config)


def test_a_study_sweeps_chooses_and_draws(study):
    curves, chosen, sweep = study.train_all()
    assert set(curves) == set(study.config.methods) and set(sweep) == set(curves) - {"flip-50"}
    assert chosen["flip-50"] == chosen["text2grad"]
    for name, figures in sweep.items():
        assert chosen[name] == float(max(figures, key=lambda rate: figures[rate].value))
    for runs in curves.values():
        assert len(runs) == 1 and all([row["step"] for row in curve] == [0, 1, 2] for curve in runs)
    starts = {json.dumps(curve[0]) for runs in curves.values() for curve in runs[:1]}
    assert len(starts) == 1, "all methods start from one policy, examined alike"
    assert "**" in sweep_table(sweep) and summary_table(curves, chosen, "ppo_sum").count("\n") == 4
    draw_study(replace(study.config, reference="flip-50"), curves)
    for name in ("small.svg", "small.png", "small_noise.svg"):
        assert (Path(study.config.report_dir) / name).stat().st_size > 1000

    files = {path: path.stat().st_mtime_ns for path in study.folder.rglob("result.json")}
    assert len(files) >= 2 * 3 + 1
    assert Study(study.config).train_all() == (curves, chosen, sweep)  # no finished run is repeated
    assert {path: path.stat().st_mtime_ns for path in study.folder.rglob("result.json")} == files
    assert not list(study.folder.rglob("rollouts.jsonl"))


def test_the_placement_of_the_reward_is_all_that_differs(tmp_path, study):
    """Text2Grad and scalar PPO sample the same first responses and give them the same total reward."""
    protocol = Protocol(steps=1, rollouts=4, evaluate_every=1, held_out=2, max_response_tokens=16)
    first = {}
    for name in ("text2grad", "ppo_sum"):
        run_method(name, 1e-3, 3, tmp_path / name, study.materials, protocol)
        first[name] = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])
    assert first["text2grad"]["reward/mean"] == pytest.approx(first["ppo_sum"]["reward/mean"])
    assert first["text2grad"]["delta/mean"] == first["ppo_sum"]["delta/mean"]
    assert first["text2grad"]["policy/loss"] != first["ppo_sum"]["policy/loss"]


def curve(*values: float) -> results.Curve:
    return [{"step": 10 * index, "f1": value} for index, value in enumerate(values)]


def test_steps_to_a_level():
    slow = [curve(0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4)] * 3
    fast = [curve(0.0, 0.2, 0.4, 0.6, 0.6, 0.6, 0.6)] * 3
    assert results.steps_to_reference(fast, slow) == pytest.approx([30] * 3)  # 0.2, 0.4 and 0.6 are 0.4 on average
    assert results.shown(results.steps_to_reference(slow, fast)) == "never (never to never)"
    assert results.shown([10.2, 12.0, math.inf]) == "12 (10 to never)"
    assert results.shown([10, 20, 30, 40]) == "25 (10 to 40)"
    assert results.final(fast).value == pytest.approx(0.6)
    assert results.area(slow).value == pytest.approx(1.8 / 7)


def test_differences_are_those_of_paired_seeds():
    lower, higher = ([curve(*[level + shift] * 3) for level in (0.1, 0.5, 0.9)] for shift in (0.0, 0.1))
    found = results.difference(higher, lower)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    curves = dict.fromkeys(("verdict", "ppo_sum", "flip-25", "flip-25-verdict", "always-25"), lower)
    against = {name: reference_of(name, curves, "verdict") for name in curves}
    assert against.pop("flip-25") == against.pop("flip-25-verdict") == "flip-25-verdict"
    assert set(against.values()) == {"verdict"}


STUDIES = ("convergence", "ablations", "ahead", "teacher_verdict", "teacher", "sdpo")


def test_the_pages_show_what_the_stored_studies_say():
    folder = ROOT / "benchmarks"
    for page, studies in (("teacher.md", STUDIES[-3:]), ("convergence.md", STUDIES[:-3])):
        said = {}
        for name in studies:
            path = folder / "micro" / f"{name}.yaml"
            command = f"# python benchmarks/convergence.py --config benchmarks/micro/{name}.yaml\n"
            assert path.read_text().startswith(command)
            config = parse(StudyConfig, args=["--config", str(path)])
            config.check()
            result = load_result(str(folder / "figures" / f"{name}.json"), config.methods)
            said |= {method_of(method).label: str(results.final(runs)) for method, runs in result["curves"].items()}
        rows = [line.strip("| ").split(" | ") for line in (folder / page).read_text(encoding="utf-8").splitlines()]
        shown = {row[0]: row[1].strip() for row in rows if row[0] in said and len(row) < 4}  # more: the next test's
        assert len(shown) >= 4 and shown == {label: said[label] for label in shown}


def test_the_page_shows_where_sdpo_ends():
    curves = load_json(ROOT / "benchmarks" / "figures" / "sdpo.json")["curves"]
    page = (ROOT / "benchmarks" / "teacher.md").read_text("utf-8")
    assert [name for name, runs in curves.items() if f"{results.final(runs).value:.3f}" not in page] == []


def test_the_page_shows_by_how_much_verdicts_are_better():
    folder = ROOT / "benchmarks"
    curves = load_json(folder / "figures" / "verdict.json")["curves"]
    page = (folder / "convergence.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()]
    shown = {row[0]: [cell.strip() for cell in row[1:]] for row in rows if len(row) == 5}
    for name in [name for name in curves if method_of(name).noise is None]:
        cells = []
        for critic in ("", "flip-25-"):
            own, other = curves[f"{critic}verdict"], curves.get(f"{critic}{name}")
            below = "–" if name == "verdict" or not other else str(results.difference(own, other))
            cells += [str(results.final(other)) if other else "–", below]
        in_text = f"({results.final(curves[name]).value:.3f})" in page
        assert in_text if method_of(name).label not in shown else shown[method_of(name).label] == cells, name


def test_the_page_shows_what_spans_are_worth():
    folder = ROOT / "benchmarks"
    cells = [load_json(folder / "figures" / "spans.json")[name] for name in (*CRITICS, "requests")]
    rows = [line.strip("| ").split(" | ") for line in (folder / "spans.md").read_text("utf-8").splitlines()]
    shown = {row[0]: row[1:] for row in rows if len(row) == 9}
    assert {"verdict alone", "verdict and spans", "GRPO, verdict"} < set(shown) - {"cosine", "---"} < set(cells[0])
    for method in shown.keys() & cells[0].keys():
        means = [fmean(cell[method][kind]) for cell in cells for kind in ("all", "what to say")]
        assert shown[method] == [f"{mean:.2f}".replace("-0.00", "0.00").replace("-", "−") for mean in means]


@pytest.mark.slow
def test_a_stored_study_is_printed_and_drawn_again(tmp_path, run_script):
    settings = "--study tiny --methods text2grad ppo_sum --learning_rates 0.001 --sweep_seeds 9 --seeds 1 2 --steps 1"
    settings += " --rollouts 4 --evaluate_every 1 --held_out 4 --base_steps 2 --generation decoder"
    flags = [*settings.split(), "--output_dir", tmp_path / "runs", "--report_dir", tmp_path / "figures"]
    done = run_script("benchmarks/convergence.py", *flags)
    assert "| Text2Grad " in done.stdout
    stored = tmp_path / "figures" / "tiny.json"
    report = json.loads(stored.read_text())
    assert report["learning_rates"] == {"text2grad": 0.001, "ppo_sum": 0.001} and len(report["curves"]["ppo_sum"]) == 2

    figure = (tmp_path / "figures" / "tiny.svg").read_bytes()
    shutil.rmtree(tmp_path / "runs")
    again = run_script("benchmarks/convergence.py", *flags, "--stored", stored)
    assert again.stdout == done.stdout and (tmp_path / "figures" / "tiny.svg").read_bytes() == figure
    assert not (tmp_path / "runs").exists(), "nothing is trained"
    other = run_script("benchmarks/convergence.py", *flags, "--stored", stored, "--methods", "ppo_sum", "grpo", code=2)
    assert "compares" in other.stderr


def test_a_rewriting_does_what_the_critique_says():
    rng, checked = random.Random(3), 0
    for number in range(300):
        record = make_record(rng, number)
        critique, answer = rewrite(record, rng)
        statements = read_statements(record, answer)
        said = [s.note for s in statements]
        for note, value in record["notes"].items():
            if f"{note.lower()} wrong: the notes say" in critique:
                assert f"the notes say {value}." in critique
            if any(f"{note.lower()} {end}" in critique for end in ("wrong:", "right.", "twice.")) or (
                f"not mention {record['name']}'s {note.lower()}." in critique
            ):
                assert said.count(note) == 1
                assert next(s.verdict for s in statements if s.note == note) == "right"
                checked += 1
        if "….' is not about" in critique:
            assert "aside" not in [s.verdict for s in statements]
    assert checked > 300


@pytest.mark.parametrize("name", ["flip-50-gate_distill", "critique_grpo", "capo"])
def test_the_methods_run(tmp_path, materials, name):
    assert load_json(Path(materials.base) / "base.json")["rewritings"] == 0.5
    protocol = Protocol(
        steps=1, rollouts=16 if name == "critique_grpo" else 4, evaluate_every=1, held_out=2, max_response_tokens=16,
        kl_coef=0.02, praises=True,
    )  # fmt: skip
    config = config_of(name, 1e-3, 1, tmp_path / "run", materials, protocol)
    assert config.kl_coef == 0.02
    result = run_method(name, 1e-3, 1, tmp_path / "run", materials, protocol)
    assert [row["step"] for row in result["curve"]] == [0, 1]
    if name == "flip-50-gate_distill":
        row = load_json(tmp_path / "run" / "metrics.jsonl")[0]
        assert row["teacher/unread"] == 0 and row["teacher/kept"] <= 1


def test_a_run_that_breaks_has_nothing_from_there_on(tmp_path, materials, capsys):
    protocol = Protocol(steps=3, rollouts=4, evaluate_every=1, held_out=2, max_response_tokens=16)
    result = run_method("text2grad", 1e30, 1, tmp_path / "run", materials, protocol)
    assert [row["step"] for row in result["curve"]] == [0, 1, 2, 3]
    assert [row["f1"] for row in result["curve"][-2:]] == [0.0, 0.0] and "is nan" in capsys.readouterr().out
