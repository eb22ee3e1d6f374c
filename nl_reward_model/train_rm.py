"""Train a reward model R(x, y) = [c; A(y)]: a causal LM, teacher forcing, loss on z alone (paper, section 3.4).

    python nl_reward_model/train_rm.py --task my_task.py --data_path annotated.json --output_dir runs/reward_model

One engine for all tasks; ``nl_reward_model/<task>/train_rm.py`` calls it. Running the same command again goes on from
the last checkpoint, or does nothing where training has finished.
"""

import warnings
from importlib.metadata import version
from os.path import commonprefix
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars
from transformers import TrainerState

from nl_reward_model.card import figure, reward_model_card
from nl_reward_model.config import RewardModelConfig
from nl_reward_model.data import check_disjoint, split_by_prompt, spread
from nl_reward_model.monitor import Monitor
from nl_reward_model.rows import collate, shared_rows
from nl_reward_model.trainer import RewardTrainer
from text2grad.configs import parse_for
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, RewardModelDescription
from text2grad.critics.reward_model.examples import EncodedRecords, encode, learnt, load_annotated, target
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.critics.reward_model.reading import keeps_all
from text2grad.errors import InputError, command
from text2grad.grounding import ground
from text2grad.journal import finetuning
from text2grad.journal.checksums import save_checksums
from text2grad.journal.run_folder import RUN_FILE, claimed, lasting_name
from text2grad.models import (
    adapting,
    base_of,
    check_positions,
    is_adapter,
    load_model,
    load_tokenizer,
    lora_config,
    portable_base_name,
    weights_fingerprint,
)
from text2grad.prompts import Prompt, find_prompt, load_prompt
from text2grad.records import Records, check_writable, fingerprint, load_json, save_text
from text2grad.tasks import Task, get_task, settings_of_task
from text2grad.tasks.commands import quoted, say_next, stage_command

_EXAMPLES = 16
_LIBRARIES = ("text2grad", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")


def train(task: str | Task, config: RewardModelConfig) -> None:
    """Train, and leave in ``config.output_dir`` weights, tokenizer, prompt, description and a card.

    Raises:
        InputError: a file, record or setting that the user has to correct, or another run in the folder.
    """
    with claimed(config.output_dir, "reward_model"):
        task = get_task(task)
        _train(task if config.critique else task.without_critique(), Path(config.output_dir), config)


def _train(task: Task, output: Path, config: RewardModelConfig) -> None:
    if config.push_to_hub:  # TRL would upload before the card is written
        raise InputError("--push_to_hub: upload the finished folder, by `hf upload OWNER/NAME OUTPUT_DIR`")
    file = load_prompt(find_prompt(task, "reward_model", config.prompt, config.critique))
    records = load_annotated(config.data_path, task)
    training, validation = _split(records, task, config)
    used = [*training.items(), *validation.items()]  # two files may know different records by one id
    given = [(key, record, feedback) for key, record in used if (feedback := task.feedback(record))]
    judged = [feedback.score is not None for *_, feedback in given]
    if not (config.verdict and all(judged)):
        task = task.without_verdict()  # z has one form: a model of two would not know when to stop
        told = any(judged) or any(feedback.missing for *_, feedback in given)
        if config.verdict and told and config.process_index == 0:
            print(
                f"warning: {config.data_path}: only {sum(judged)} of {len(judged)} records have a verdict, so the "
                "model learns none, nor what is missing; leave the others out to learn both"
            )
    strays = [
        key for key, record, feedback in given
        if not all(ground(quote, task.response(record)) for quote in feedback.good + feedback.poor)
    ]  # fmt: skip
    if strays and config.process_index == 0:
        print(
            f"warning: {config.data_path}: {len(strays)} records quote what their response does not say, such as "
            f"{strays[0]!r}; the model learns to do so, too"
        )
    file = file.bound("whole", task.fields.whole)
    check_writable(output / RUN_FILE)

    tokenizer = load_tokenizer(config.model)
    prompt = RewardPrompt(file, task, tokenizer, config.max_prompt_tokens, config.shorten)
    encoded, held_out = (encode(part, task, prompt, config.max_length) for part in (training, validation))
    _check_encoded(encoded, held_out, validation, config)
    description = _describe(task, config, encoded, held_out, records)
    if config.process_index == 0:
        _report_data(description.data)
    description.changes, more = _begin_or_resume(output, description, file, config, validation)
    if not more:
        if config.process_index == 0:
            print(f"{output}: this training has finished; delete the folder to train again")
            _say_next(task, config)
        return

    monitor = Monitor(description, prompt, validation, config)
    trainer = _trainer(config, tokenizer, encoded, held_out, monitor)
    finetuning.train(trainer)
    if config.load_best_model_at_end:
        monitor.best_step = _loaded_step(trainer.state, output, config)
    if held_out.examples and not _evaluated(trainer.state, monitor.best_step):
        trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        description.metrics = monitor.metrics(trainer.state)
        save_checksums(output)
        description.save(output, file)
        save_text(output / "README.md", reward_model_card(description, file, bool(config.lora_r)))
        print(f"finished: {', '.join(f'{name} {figure(value)}' for name, value in description.metrics.items())}")
        print(f"reward model: {output}")
        _say_next(task, config)


def _say_next(task: Task, config: RewardModelConfig) -> None:
    none_held_out = not config.validation_path and not config.validation_share
    split = [config.validation_path] if config.validation_path else [config.data_path, "--split", "validation"]
    say_next(
        f"measure it on {'other annotated' if none_held_out else 'the held-out'} records, "
        f"{stage_command('feedback', task)} --model {quoted(config.output_dir)} --data_path "
        f"{'RECORDS' if none_held_out else quoted(*split)} --output_path {quoted(f'{config.output_dir}/feedback.json')}"
    )


def _loaded_step(state: TrainerState, output: Path, config: RewardModelConfig) -> int | None:
    """The step of the best checkpoint, which the trainer has loaded at its end; None where there was none to load."""
    loaded = int(state.best_model_checkpoint.rpartition("-")[2]) if state.best_model_checkpoint else None
    if loaded != state.best_global_step and config.process_index == 0:
        print(
            f"warning: {output}: checkpoint-{state.best_global_step}, of the lowest validation loss, is lost; "
            f"the weights are those of step {loaded or state.global_step}"
        )
    return loaded


def _evaluated(state: TrainerState, best_step: int | None) -> bool:
    """Whether the weights now in memory are those of the last evaluation."""
    steps = [row["step"] for row in state.log_history if "eval_loss" in row]
    return steps[-1:] == [best_step or state.global_step]


def _split(records: Records, task: Task, config: RewardModelConfig) -> tuple[Records, Records]:
    if config.validation_path is None:
        return split_by_prompt(records, task, config.validation_share, config.seed)
    validation = load_annotated(config.validation_path, task)
    check_disjoint(records, validation, task)
    return records, validation


def _check_encoded(
    encoded: EncodedRecords, held_out: EncodedRecords, validation: Records, config: RewardModelConfig
) -> None:
    for part, path in ((encoded, config.data_path), (held_out, config.validation_path or config.data_path)):
        if not part.examples and part.dropped:
            record_id, reason = next(iter(part.dropped.items()))
            remedy = "raise --max_prompt_tokens or --max_length"
            raise InputError(f"{path}: no record fits; the first, {record_id!r}: {reason}; {remedy}")
    longest = max(len(each["input_ids"]) for each in (*encoded.examples, *held_out.examples))
    check_positions(config.model, longest, "lower --max_length")
    if not validation and config.eval_strategy != "no":
        config.eval_strategy, config.load_best_model_at_end = "no", False


def _describe(
    task: Task, config: RewardModelConfig, encoded: EncodedRecords, held_out: EncodedRecords, records: Records
) -> RewardModelDescription:
    longest = max(encoded.longest_completion, held_out.longest_completion)
    return RewardModelDescription(
        task=task.name,
        task_source=task.source,
        critique=config.critique,
        verdict=task.fields.with_verdict and task.fields.with_critique,
        base_model=lasting_name(base_of(config.model)),
        prompt_max_length=config.max_prompt_tokens,
        max_length=config.max_length,
        shorten=config.shorten,
        max_new_tokens=min(longest + longest // 4 + 16, config.max_length),
        examples=spread(sorted(target(records[record_id], task) for record_id in encoded.ids), _EXAMPLES),
        settings=config.decisions(),
        data={
            "path": config.data_path,
            "hash": fingerprint(list(records.items())),
            "validation_path": config.validation_path,
            "training": len(encoded.ids),
            "validation": len(held_out.ids),
            "shortened": encoded.shortened + held_out.shortened,
            "dropped": encoded.dropped | held_out.dropped,
            "validation_ids": held_out.ids,
        },
        versions={name: version(name) for name in (*_LIBRARIES, *(("deepspeed",) if config.deepspeed_plugin else ()))},
    )


def _report_data(data: dict[str, Any]) -> None:
    print(
        f"{data['training']} records to train on, {data['validation']} of other prompts to validate on; "
        f"{data['shortened']} prompts shortened, {len(data['dropped'])} records dropped"
    )
    for record_id, reason in list(data["dropped"].items())[:5]:
        print(f"  dropped {record_id}: {reason}")


def _begin_or_resume(
    output: Path, description: RewardModelDescription, prompt: Prompt, config: RewardModelConfig, validation: Records
) -> tuple[list[dict[str, Any]], bool]:
    """Refuse to mix two runs in one folder; returns the changes since it was begun, and whether anything is left."""
    added = {"weights": weights_fingerprint(config.model), "validation": fingerprint(list(validation.items()))}
    run = {"prompt": prompt.text, "data": description.data["hash"], **description.settings, **added}
    path = output / RUN_FILE
    with config.main_process_first(local=False):
        begun = added | load_json(path) if path.is_file() else None
    run, more = finetuning.begin(path, begun, run, DESCRIPTION_FILE, config, DESCRIPTION_FILE)
    return run.get("changes", []), more


def _trainer(
    config: RewardModelConfig, tokenizer, encoded: EncodedRecords, held_out: EncodedRecords, monitor: Monitor
) -> RewardTrainer:
    model = load_model(config.model, config.weights_dtype, dropout=config.lora_dropout)
    if config.responses_per_row > 1 and not (keeps_all(model) and model.config._attn_implementation == "sdpa"):
        raise InputError(f"--responses_per_row: not every layer of {config.model} obeys such rows' masks; leave it out")
    disable_progress_bars()  # TRL's "Truncating": nothing is cut, all records fit already
    with adapting():
        trainer = RewardTrainer(
            model=model,
            args=config,
            train_dataset=_rows(encoded, config),
            eval_dataset=_rows(held_out, config) if held_out.examples else None,
            data_collator=collate if config.responses_per_row > 1 else None,
            processing_class=tokenizer,
            peft_config=lora_config(config) if config.lora_r and not is_adapter(config.model) else None,
            callbacks=[monitor],
        )
    monitor.trainer = trainer
    if config.first_word_weight != 1:
        trainer.first_word = len(commonprefix([learnt(each) for each in encoded.examples]))
    if config.lora_r:  # PEFT would name the folder that the model was loaded from
        trainer.model.peft_config["default"].base_model_name_or_path = portable_base_name(base_of(config.model))
        # Saving, it looks for that name on the hub, to see whether the vocabulary grew; here it never does.
        warnings.filterwarnings("ignore", "Unable to fetch remote file|Could not find a config file", UserWarning)
    return trainer


def _rows(encoded: EncodedRecords, config: RewardModelConfig) -> Dataset:
    if config.responses_per_row == 1:
        return Dataset.from_list(encoded.examples)
    return Dataset.from_list(shared_rows(encoded.examples, encoded.prompts, config.responses_per_row))


@command
def main(task: str = "") -> None:
    """For the scripts of a task, or with ``--task`` for any."""
    place = "reward_model_config"
    settings = get_task(task).place(place) if task else settings_of_task(place)
    train(*parse_for(task, RewardModelConfig, default_config=settings))


if __name__ == "__main__":
    main()
