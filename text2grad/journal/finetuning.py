"""What keeps a training by a ``transformers`` Trainer safe: signals, whole checkpoints, one set of settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from text2grad.errors import Interrupted
from text2grad.journal.checksums import CHECKSUMS, checkpoints, damage, remove, save_checksums, set_aside
from text2grad.journal.interruption import Interruption
from text2grad.journal.run_folder import continued
from text2grad.records import save_json

FIXED = (
    "lora_r", "lora_alpha", "lora_target_modules", "optim", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "ranks", "zero_stage",
)  # fmt: skip
"""Settings that a checkpoint holds: the optimiser in it goes on with its own, and its weights fit no others."""


class SafeCheckpoints(TrainerCallback):
    """Checksums for every checkpoint. A signal ends the training after the update, with a checkpoint.

    Attributes:
        number: the signal that ended it on any rank, or 0.
    """

    def __init__(self, interruption: Interruption):
        self.interruption, self.number = interruption, 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The best checkpoint is the one in this folder, wherever the folder was when the state was saved."""
        best = Path(str(args.output_dir)) / f"checkpoint-{state.best_global_step}"
        state.best_model_checkpoint = str(best) if best.is_dir() else None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.number = _largest(self.interruption.asked(), args.device)
        if self.number:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if distributed.is_initialized():
            distributed.barrier()  # every rank has written its part
        if state.is_world_process_zero:
            save_checksums(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", "**/*")


class _Rotation(TrainerCallback):
    """Old checkpoints go when the new one is whole: a ``Trainer`` removes them before that, and a kill loses both."""

    def __init__(self, limit: int | None):
        self.limit = limit

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.limit and state.is_world_process_zero:
            found = checkpoints(Path(str(args.output_dir)))
            kept = (f"checkpoint-{state.global_step}", Path(state.best_model_checkpoint or "").name)
            for old in [path for path in found if path.name not in kept][: max(0, len(found) - self.limit)]:
                remove(old)


def train(trainer: Trainer) -> None:
    """Train from the newest checkpoint, if there is one.

    Raises:
        Interrupted: a signal came; a checkpoint has been written.
    """
    args = trainer.args
    checkpoint = get_last_checkpoint(str(args.output_dir)) if Path(str(args.output_dir)).is_dir() else None
    if checkpoint and args.process_index == 0:
        print(f"going on from {checkpoint}")
    with Interruption() as interruption:
        safe = SafeCheckpoints(interruption)
        trainer.callback_handler.callbacks.insert(0, safe)  # other callbacks may add to a checkpoint
        trainer.add_callback(_Rotation(args.save_total_limit))  # last: others complete the checkpoint
        args.save_total_limit = None
        trainer.train(resume_from_checkpoint=checkpoint)
    if safe.number:
        raise Interrupted(safe.number)


def begin(
    path: Path, begun: Mapping[str, Any] | None, now: Mapping[str, Any], result: str, args: Any, last: str = CHECKSUMS
) -> tuple[dict[str, Any], bool]:
    """Compare ``run.json`` with the settings of now, set damaged files aside, and write it.

    Args:
        begun: what the file holds; None where there is none.
        result: the file in the folder that says that the training has finished.
        last: the file that is written last in a checkpoint: one that a kill cut off has none.
        args: the training's settings: ``allow_changed`` and what ``TrainingArguments`` know of ranks.

    Returns:
        what ``run.json`` holds now, and whether there is anything left to train.

    Raises:
        InputError: other settings than those the run was begun with.
    """
    folder = path.parent
    with args.main_process_first(local=False):  # machines share the folder
        if args.process_index == 0:
            _set_aside_damaged(folder, result, last)
        finished = 0
        if folder.is_dir() and (newest := get_last_checkpoint(str(folder))):
            finished = int(newest.rpartition("-")[2])
        done = (folder / result).is_file()
        run = dict(now) if begun is None else continued(path, begun, now, finished, args.allow_changed, FIXED, not done)
        if args.process_index == 0 and (begun is None or run != dict(begun)):
            save_json(path, run)
    return run, not done


def _set_aside_damaged(folder: Path, result: str, last: str) -> None:
    """Remove checkpoints that were cut off, rename those that hold other than was written; so for the result."""
    for checkpoint in checkpoints(folder):
        if not (checkpoint / last).is_file():
            remove(checkpoint) if checkpoint.is_dir() and not checkpoint.is_symlink() else set_aside(checkpoint)
        elif problem := damage(checkpoint):
            print(f"skipping {checkpoint}: {problem}")
            set_aside(checkpoint)
    if (folder / result).is_file() and (problem := damage(folder)):
        print(f"{folder}: {problem}; writing the result again from the newest checkpoint")
        (folder / result).unlink()
        (folder / CHECKSUMS).unlink()


def _largest(number: int, device: torch.device) -> int:
    """The largest of a number over all ranks."""
    if not distributed.is_initialized():
        return number
    value = torch.tensor(number, device=device)
    distributed.all_reduce(value, distributed.ReduceOp.MAX)
    return int(value)
