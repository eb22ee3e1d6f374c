"""Kills, signals, failing critics, full disks, a second process and damaged checkpoints: the result stays the same."""

import io
import json
import os
import shutil
import signal
import time
from contextlib import nullcontext, redirect_stderr
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from nl_gradient_policy_optimization import weights as weights_module
from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.learner import Learner
from nl_gradient_policy_optimization.optimize import optimize
from nl_gradient_policy_optimization.rollouts import StepLog
from tests.processes import die, die_after, flip_byte, full, killed_at_random, run_alone, run_ranks
from tests.tiny_runs import ScriptedRewards, check_same_weights, cut_after_one_step, digest, rows, tiny_config
from text2grad.errors import InputError, StopRunError, command
from text2grad.journal.run_folder import claimed
from text2grad.models import load_tokenizer
from text2grad.records import fingerprint, load_json, save_json

STEPS, FAIL = 4, ["post-3"]


class KilledRewards(ScriptedRewards):
    """Dies at the given step, in the middle of it."""

    def __init__(self, step: int, run: Path):
        super().__init__(FAIL)
        self.step, self.run = step, run

    def __call__(self, rollouts):
        done = (self.run / "metrics.jsonl").read_text().count("\n") if (self.run / "metrics.jsonl").exists() else 0
        if done + 1 == self.step:
            die()
        return super().__call__(rollouts)


def run(
    folder: Path, name: str, kill_at: int = 0, kill_in_save: int = 0, life: float | None = None, **settings
) -> None:
    """A run that dies at a step, while it writes a step's checkpoint, or after some seconds, wherever it then is."""
    die_after(life)
    settings = {"max_steps": STEPS, "save_every": 1, "log_rollouts_every": 1, "lora_dropout": 0.1, **settings}
    config = tiny_config(folder, output_dir=str(folder / name), **settings)
    if kill_in_save:
        whole = weights_module.save_policy

        def half(accelerator, model, optimizer, checkpoint):
            whole(accelerator, model, optimizer, checkpoint)
            if checkpoint.name.startswith(f"checkpoint-{kill_in_save}."):
                die()

        weights_module.save_policy = half
    optimize("slf5k", config, KilledRewards(kill_at, folder / name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, str]:
    """Hashes of what a run that nobody disturbs computes."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, "run")
    return digest(folder / "run", STEPS)


def test_sigkill_at_every_step_and_inside_a_save(tmp_path, whole):
    sparing = partial(run, save_every=2)  # most kills lose a finished step too, which is then repeated
    killed = [-signal.SIGKILL] * STEPS
    assert [run_alone(sparing, tmp_path, "killed", step) for step in range(1, STEPS + 1)] == killed
    assert run_alone(run, tmp_path, "killed", 0, 3) == -signal.SIGKILL
    assert (tmp_path / "killed" / "checkpoint-3.partial").is_dir()
    assert run_alone(run, tmp_path, "killed") == 0
    assert not list((tmp_path / "killed").glob("*.partial"))
    assert digest(tmp_path / "killed", STEPS) == whole


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_at_random_moments(tmp_path, ranks):
    """Twelve steps, killed twenty times by the clock in start-up, rollout, update or save; nothing else differs."""
    twelve = partial(run, max_steps=12, rollouts_per_device=4 // ranks, micro_batch_size=2 // ranks)
    tiny_config(tmp_path)  # writes the model once
    begin = time.monotonic()
    assert run_ranks(twelve, ranks, tmp_path, "whole") == [0] * ranks
    start = lambda life: run_ranks(twelve, ranks, tmp_path, "killed", 0, 0, life)  # noqa: E731
    killed_at_random(start, tmp_path / "killed", 20, time.monotonic() - begin)
    assert digest(tmp_path / "killed", 12) == digest(tmp_path / "whole", 12)


def test_all_weights_and_adafactor_resume_as_well(tmp_path):
    settings = {"lora_r": 0, "optimizer": "adafactor"}
    config = tiny_config(tmp_path, **settings, save_every=1)
    whole = optimize("slf5k", config, ScriptedRewards())
    load_tokenizer(str(whole.run / "checkpoint-2" / "policy"))  # a whole model can be asked at every checkpoint
    config.output_dir = str(tmp_path / "again")
    check_same_weights(whole, cut_after_one_step(config, ScriptedRewards()))


def test_a_full_disk_ends_a_run_that_goes_on_when_there_is_room(tmp_path, whole, small_disk):
    settings = {"save_every": 1, "log_rollouts_every": 1, "lora_dropout": 0.1, "max_steps": STEPS}
    disk = small_disk(12)
    config = tiny_config(tmp_path, output_dir=str(disk / "run"), **settings)
    filler = []

    class FillingRewards(ScriptedRewards):
        def __call__(self, rollouts):
            if (disk / "run" / "checkpoint-1").exists() and not filler:
                filler.append(full(disk))
            return super().__call__(rollouts)

    said = io.StringIO()
    with pytest.raises(SystemExit), redirect_stderr(said):
        command(lambda: optimize("slf5k", config, FillingRewards(FAIL)))()
    assert "the disk is full" in said.getvalue(), said.getvalue()
    filler[0].unlink()
    optimize("slf5k", config, ScriptedRewards(FAIL))
    assert digest(disk / "run", STEPS) == whole


def test_a_second_run_in_the_folder_and_another_number_of_processes_are_refused(tmp_path):
    config = tiny_config(tmp_path, max_steps=1)
    with claimed(config.output_dir, "policy"), pytest.raises(InputError, match="another run is working there"):
        optimize("slf5k", config, ScriptedRewards())
    assert not (Path(config.output_dir) / "run.json").exists()
    optimize("slf5k", config, ScriptedRewards())
    path = Path(config.output_dir) / "checkpoint-1" / "state.json"
    state = {**json.loads(path.read_text()), "processes": 8}
    del state["digest"]
    save_json(path, {**state, "digest": fingerprint(state)})
    with pytest.raises(InputError, match="written by 8 processes"):
        optimize("slf5k", config, ScriptedRewards())


@pytest.mark.parametrize("ahead", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_ranks_go_on_also_with_rollouts_sampled_ahead(tmp_path, ahead):
    tiny_config(tmp_path)  # writes the model once, before two processes would
    start = partial(run, rollouts_per_device=2, micro_batch_size=1, rollouts_ahead=ahead)
    assert run_ranks(start, 2, tmp_path, "whole") == [0, 0]
    assert -signal.SIGKILL in run_ranks(start, 2, tmp_path, "killed", 3)
    assert (tmp_path / "killed" / "checkpoint-2" / "ahead-rank1.pt").exists() == ahead
    assert run_ranks(start, 2, tmp_path, "killed") == [0, 0]
    assert digest(tmp_path / "killed", STEPS) == digest(tmp_path / "whole", STEPS)


def test_what_stands_in_a_checkpoints_or_the_policys_place(tmp_path):
    """Links and files: seen before anything is trained, or out of the way when a checkpoint is finished."""
    config = tiny_config(tmp_path, save_every=1, save_total_limit=1, max_steps=1)
    folder = Path(config.output_dir)
    optimize("slf5k", config, ScriptedRewards())
    (folder / "checkpoint-1").rename(tmp_path / "moved")
    (folder / "checkpoint-1").symlink_to(tmp_path / "moved")
    (folder / "checkpoint-2").symlink_to("nowhere")
    (folder / "checkpoint-3").touch()
    config.max_steps = 3
    for name, blocked in (("policy", Path.touch), ("rollouts.jsonl", Path.mkdir)):
        shutil.move(folder / name, tmp_path / name)
        blocked(folder / name)
        with pytest.raises(InputError, match=rf"{name}: is (not )?a folder"):
            optimize("slf5k", config, ScriptedRewards())
        (folder / name).rmdir() if blocked is Path.mkdir else (folder / name).unlink()
        shutil.move(tmp_path / name, folder / name)
    trainer = optimize("slf5k", config, ScriptedRewards())
    assert trainer.finished_steps == 3
    left = sorted(path.name for path in folder.glob("checkpoint-*") if path.is_dir())
    assert left == ["checkpoint-3"] and (tmp_path / "moved" / "state.json").is_file()


class SignalledRewards(ScriptedRewards):
    """In feedback of the third step one rank gets a signal, or the critic fails there."""

    def __init__(self, what: str, rank: int):
        super().__init__(FAIL)
        self.what, self.mine, self.step = what, rank == int(os.environ.get("RANK", 0)), 0

    def __call__(self, rollouts):
        self.step += 1
        if self.step == 3 and self.mine:
            if self.what == "critic":
                raise StopRunError("the server stays away")
            os.kill(os.getpid(), signal.Signals[self.what])
        return super().__call__(rollouts)


def interrupted(folder: Path, name: str, what: str = "", rank: int = 0, late: bool = False, **settings) -> None:
    """A run that an entry script makes; only its last step is saved by itself.

    Args:
        late: the signal comes while the policy is updated.
    """
    config = tiny_config(
        folder, output_dir=str(folder / name), max_steps=STEPS, save_every=0, log_rollouts_every=1, lora_dropout=0.1,
        **settings,
    )  # fmt: skip

    update = Learner.update

    def told(learner, batch, step, *steps):
        if step == 3:
            os.kill(os.getpid(), signal.Signals[what])
        return update(learner, batch, step, *steps)

    rewards = SignalledRewards(what, rank) if what and not late else ScriptedRewards(FAIL)
    with patch.object(Learner, "update", told if late else update):
        command(lambda: optimize("slf5k", config, rewards))()


def code_of(folder: Path, name: str, what: str = "", late: bool = False, ahead: bool = False, **settings) -> int:
    """The exit code of a run in this process."""
    with pytest.raises(SystemExit) if what else nullcontext() as ended:
        interrupted(folder, name, what, late=late, rollouts_ahead=ahead, **settings)
    return ended.value.code if what else 0


CASES = [("SIGTERM", False, 2), ("SIGUSR1", True, 3), ("critic", False, 2)]


@pytest.mark.parametrize(("ahead", "cases"), [(False, CASES), (True, CASES[:1])], ids=["in turn", "ahead"])
def test_a_signal_drops_or_finishes_the_step_and_keeps_the_rest(tmp_path, whole, ahead, cases):
    """All steps are saved, and the same command ends in the same weights, optimiser and rollouts by hash."""
    if ahead:
        code_of(tmp_path, "whole", ahead=True)
        whole = digest(tmp_path / "whole", STEPS)
    for name, late, kept in cases:
        folder = tmp_path / name
        expected = 2 if name == "critic" else 128 + signal.Signals[name]
        assert code_of(tmp_path, name, name, late, ahead) == expected
        assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{kept}"]
        assert [row["step"] for row in rows(folder / "metrics.jsonl")] == list(range(1, kept + 1))
        code_of(tmp_path, name, ahead=ahead, allow_changed=True)  # nothing is changed
        assert digest(folder, STEPS) == whole


@pytest.mark.parametrize("what", ["SIGTERM", "critic"])
def test_two_ranks_end_together_though_one_was_told(tmp_path, what):
    tiny_config(tmp_path)
    start = partial(interrupted, rollouts_per_device=2, micro_batch_size=1)
    codes = run_ranks(start, 2, tmp_path, "run", what, 1)
    assert set(codes) <= {143 if what == "SIGTERM" else 2, -signal.SIGKILL}
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    assert run_ranks(start, 2, tmp_path, "run") == [0, 0]
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_two_ranks_stop_at_a_limit_of_kl_together(tmp_path):
    tiny_config(tmp_path)
    start = partial(interrupted, rollouts_per_device=2, micro_batch_size=1, kl_limit=1e-9)
    for _ in range(2):  # the same command again goes no step further
        assert run_ranks(start, 2, tmp_path, "run", timeout=120) == [0, 0]
        assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
        assert all((tmp_path / "run" / name).is_dir() for name in ("checkpoint-2", "policy"))


DAMAGES = {
    "a byte of the weights": lambda folder: flip_byte(folder / "policy" / "adapter_model.safetensors"),
    "a byte of the optimiser": lambda folder: flip_byte(folder / "optimizer.pt"),
    "another β": lambda folder: save_json(folder / "state.json", load_json(folder / "state.json") | {"kl_coef": 0.5}),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "a list": lambda folder: (folder / "state.json").write_text("[]"),
    "an empty object": lambda folder: (folder / "state.json").write_text("{}"),
    "a copy": lambda folder: (shutil.rmtree(folder), shutil.copytree(folder.with_name("checkpoint-2"), folder)),
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


def test_any_damage_falls_back_to_the_checkpoint_before(tmp_path, capsys):
    config = tiny_config(tmp_path, save_every=1, max_steps=3, save_total_limit=3)
    trainer = optimize("slf5k", config, ScriptedRewards())
    whole, expected = tmp_path / "whole", digest(trainer.run, 3)
    shutil.copytree(config.output_dir, whole)
    for what, do in DAMAGES.items():
        shutil.rmtree(config.output_dir)
        shutil.copytree(whole, config.output_dir)
        newest = trainer.run / "checkpoint-3"
        do(newest)
        capsys.readouterr()
        checkpoints = Checkpoints(trainer.run, 3, trainer.accelerator)
        assert checkpoints.finished_steps() == 2 and checkpoints.set_aside() == 1, what
        said = capsys.readouterr().out
        assert f"skipping {newest}: " in said and ("it is a copy of checkpoint-2" in said) == (what == "a copy"), what
        assert newest.with_name("checkpoint-3.damaged").exists() and not newest.exists(), what
    newest.with_name("checkpoint-3.damaged").rename(newest)
    flip_byte(newest.with_name("checkpoint-2") / "optimizer.pt")  # now two are damaged
    capsys.readouterr()
    trainer = optimize("slf5k", config, ScriptedRewards())
    assert "checkpoint-2: its file optimizer.pt is damaged" in capsys.readouterr().out
    assert digest(trainer.run, 3) == expected
    assert len(list(trainer.run.glob("checkpoint-?"))) == 3


def test_with_no_whole_checkpoint_the_logs_of_before_are_kept(tmp_path, capsys):
    config = tiny_config(tmp_path, max_steps=1)
    optimize("slf5k", config, ScriptedRewards())
    run_folder = Path(config.output_dir)
    before = (run_folder / "rollouts.jsonl").read_bytes()
    flip_byte(run_folder / "checkpoint-1" / "optimizer.pt")
    optimize("slf5k", config, ScriptedRewards())
    assert "no checkpoint is whole: starting over" in capsys.readouterr().err
    StepLog(run_folder / "rollouts.jsonl").rewind(0, lost=True)  # a second time
    for name in ("rollouts.before.jsonl", "rollouts.before1.jsonl"):
        assert (run_folder / name).read_bytes() == before
    assert [row["step"] for row in rows(run_folder / "metrics.jsonl")] == [1]


def test_a_policy_that_is_damaged_or_was_not_kept_is_made_again(tmp_path):
    config = tiny_config(tmp_path, max_steps=1)
    optimize("slf5k", config, ScriptedRewards())
    files = [Path(config.output_dir) / name / "adapter_model.safetensors" for name in ("policy", "policies/1")]
    whole = [file.read_bytes() for file in files]
    flip_byte(files[0])
    other = tiny_config(tmp_path, model=str(files[0].parent), output_dir=str(tmp_path / "more"), max_steps=1)
    with pytest.raises(InputError, match=r"adapter_model.safetensors is damaged .*checkpoint-1/policy"):
        optimize("slf5k", other, ScriptedRewards())
    shutil.rmtree(files[1].parent)  # as a kill right after the checkpoint would leave it
    optimize("slf5k", config, ScriptedRewards())
    assert [file.read_bytes() for file in files] == whole
    optimize("slf5k", other, ScriptedRewards())
