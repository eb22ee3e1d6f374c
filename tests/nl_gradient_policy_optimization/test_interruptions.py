"""Signals, failing critics, a second process and damaged checkpoints: nothing is lost, and the result is the same."""

import os
import shutil
import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from nl_gradient_policy_optimization.optimize import optimize, prepare
from tests.nl_gradient_policy_optimization.test_resume import digest
from tests.processes import run_ranks
from tests.tiny_runs import ScriptedRewards, rows, tiny_config
from text2grad.errors import InputError, StopRunError, command
from text2grad.journal.run_folder import claimed
from text2grad.records import load_json, save_json

STEPS = 4


class SignalledRewards(ScriptedRewards):
    """In feedback of the third step one rank gets a signal, or the critic fails there."""

    def __init__(self, what: str, rank: int):
        super().__init__()
        self.what, self.mine, self.step = what, rank == int(os.environ.get("RANK", 0)), 0

    def __call__(self, rollouts):
        self.step += 1
        if self.step == 3 and self.mine:
            if self.what == "critic":
                raise StopRunError("the server stays away")
            os.kill(os.getpid(), signal.Signals[self.what])
        return super().__call__(rollouts)


def run(folder: Path, name: str, what: str = "", rank: int = 0, late: bool = False, **settings) -> None:
    """A run that an entry script makes; only its last step is saved by itself.

    Args:
        late: the signal comes while the policy is updated.
    """
    config = tiny_config(
        folder, output_dir=str(folder / name), max_steps=STEPS, save_every=0, log_rollouts_every=1, lora_dropout=0.1,
        **settings,
    )  # fmt: skip

    def main() -> None:
        if late:
            trainer = prepare("slf5k", config, ScriptedRewards())
            update = trainer.learner.update

            def interrupted(batch, step, *steps):
                if step == 3:
                    os.kill(os.getpid(), signal.Signals[what])
                return update(batch, step, *steps)

            trainer.learner.update = interrupted
            trainer.train()
        else:
            optimize("slf5k", config, SignalledRewards(what, rank) if what else ScriptedRewards())

    command(main)()


def code_of(folder: Path, name: str, what: str = "", late: bool = False, ahead: bool = False) -> int:
    """The exit code of a run in this process."""
    with pytest.raises(SystemExit) if what else nullcontext() as ended:
        run(folder, name, what, late=late, rollouts_ahead=ahead)
    return ended.value.code if what else 0


CASES = [("SIGTERM", False, 2), ("SIGUSR1", True, 3), ("critic", False, 2)]


@pytest.mark.parametrize(("ahead", "cases"), [(False, CASES), (True, CASES[:1])], ids=["in turn", "ahead"])
def test_a_signal_drops_or_finishes_the_step_and_keeps_the_rest(tmp_path, ahead, cases):
    """All steps are saved, and the same command ends in the same weights, optimiser and rollouts by hash."""
    code_of(tmp_path, "whole", ahead=ahead)
    for name, late, kept in cases:
        folder = tmp_path / name
        expected = 2 if name == "critic" else 128 + signal.Signals[name]
        assert code_of(tmp_path, name, name, late, ahead) == expected
        assert [path.name for path in folder.glob("checkpoint-*")] == [f"checkpoint-{kept}"]
        assert [row["step"] for row in rows(folder / "metrics.jsonl")] == list(range(1, kept + 1))
        code_of(tmp_path, name, ahead=ahead)
        assert digest(folder, STEPS) == digest(tmp_path / "whole", STEPS)


@pytest.mark.parametrize("what", ["SIGTERM", "critic"])
def test_two_ranks_end_together_though_one_was_told(tmp_path, what):
    tiny_config(tmp_path)
    start = partial(run, rollouts_per_device=2, micro_batch_size=1)
    codes = run_ranks(start, 2, tmp_path, "run", what, 1)
    assert set(codes) <= {143 if what == "SIGTERM" else 2, -signal.SIGKILL}
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    assert run_ranks(start, 2, tmp_path, "run") == [0, 0]
    assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_two_ranks_stop_at_a_limit_of_kl_together(tmp_path):
    tiny_config(tmp_path)
    start = partial(run, rollouts_per_device=2, micro_batch_size=1, kl_limit=1e-9)
    for _ in range(2):  # the same command again goes no step further
        assert run_ranks(start, 2, tmp_path, "run", timeout=120) == [0, 0]
        assert [row["step"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
        assert all((tmp_path / "run" / name).is_dir() for name in ("checkpoint-2", "policy"))


def test_a_second_run_in_the_folder_is_refused(tmp_path):
    config = tiny_config(tmp_path)
    with claimed(config.output_dir, "policy"), pytest.raises(InputError, match="another run is working there"):
        optimize("slf5k", config, ScriptedRewards())
    assert not (Path(config.output_dir) / "run.json").exists()
    optimize("slf5k", config, ScriptedRewards())


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a byte of the weights": lambda folder: _flip(folder / "policy" / "adapter_model.safetensors"),
    "a byte of the optimiser": lambda folder: _flip(folder / "optimizer.pt"),
    "another β": lambda folder: save_json(folder / "state.json", load_json(folder / "state.json") | {"kl_coef": 0.5}),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "a list": lambda folder: (folder / "state.json").write_text("[]"),
    "an empty object": lambda folder: (folder / "state.json").write_text("{}"),
    "no UTF-8": lambda folder: (folder / "state.json").write_bytes(b'{"step": "\xff"}'),
    "a number of 5000 digits": lambda folder: (folder / "state.json").write_text(f'{{"step": {"1" * 5000}}}'),
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


def test_any_damage_falls_back_to_the_checkpoint_before(tmp_path, capsys):
    config = tiny_config(tmp_path, save_every=1, max_steps=3, save_total_limit=3)
    optimize("slf5k", config, ScriptedRewards())
    whole, expected = tmp_path / "whole", digest(Path(config.output_dir), 3)
    shutil.copytree(config.output_dir, whole)
    for what, do in DAMAGES.items():
        shutil.rmtree(config.output_dir)
        shutil.copytree(whole, config.output_dir)
        newest = Path(config.output_dir) / "checkpoint-3"
        do(newest)
        capsys.readouterr()
        trainer = prepare("slf5k", config, ScriptedRewards())
        trainer.resume()
        assert trainer.finished_steps == 2, what
        assert f"skipping {newest}: " in capsys.readouterr().out, what
        assert newest.with_name("checkpoint-3.damaged").exists() and not newest.exists(), what
    newest.with_name("checkpoint-3.damaged").rename(newest)
    _flip(newest.with_name("checkpoint-2") / "optimizer.pt")  # now two are damaged
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
    _flip(run_folder / "checkpoint-1" / "optimizer.pt")
    optimize("slf5k", config, ScriptedRewards())
    assert "no checkpoint is whole: starting over" in capsys.readouterr().err
    assert (run_folder / "rollouts.before.jsonl").read_bytes() == before
    assert [row["step"] for row in rows(run_folder / "metrics.jsonl")] == [1]


def test_a_damaged_policy_is_refused_and_made_again(tmp_path):
    config = tiny_config(tmp_path, max_steps=1)
    optimize("slf5k", config, ScriptedRewards())
    policy = Path(config.output_dir) / "policy"
    whole = (policy / "adapter_model.safetensors").read_bytes()
    _flip(policy / "adapter_model.safetensors")
    other = tiny_config(tmp_path, model=str(policy), output_dir=str(tmp_path / "more"), max_steps=1)
    with pytest.raises(InputError, match=r"adapter_model.safetensors is damaged .*checkpoint-1/policy"):
        optimize("slf5k", other, ScriptedRewards())
    optimize("slf5k", config, ScriptedRewards())
    assert (policy / "adapter_model.safetensors").read_bytes() == whole
    optimize("slf5k", other, ScriptedRewards())
