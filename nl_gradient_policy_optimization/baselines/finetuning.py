"""What SFT, DPO and the scalar reward model share: settings, encoding, LoRA, held-out prompts, resume."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from peft import LoraConfig
from transformers import PreTrainedTokenizerBase, Trainer

from nl_gradient_policy_optimization.devices import check_sharding
from nl_gradient_policy_optimization.rollouts import encode_prompt
from text2grad.configs import TASK_HELP, check_given, check_values, setting
from text2grad.critics.reward_model.prompt import completion_ids
from text2grad.errors import InputError
from text2grad.journal.checksums import save_checksums
from text2grad.journal.finetuning import begin, train
from text2grad.journal.run_folder import RUN_FILE, changes_shown, claimed
from text2grad.journal.settings import TrainingSettings
from text2grad.models import (
    adapting,
    base_of,
    card_header,
    card_loading,
    check_positions,
    go_on_with_adapter,
    is_adapter,
    load_model,
    load_tokenizer,
    lora_config,
    portable_base_name,
    weights_fingerprint,
)
from text2grad.prompts import POLICY_PROMPT, asking, carried_words, load_prompt
from text2grad.records import fingerprint, load_json, save_json, save_text
from text2grad.tasks import Task, get_task
from text2grad.tasks.commands import say_next

RESULT_FILE = "result.json"
_LOADING_SCALAR = """## Loading it

```python
from nl_gradient_policy_optimization.baselines.scalar_model import load_scalar_model

model, description = load_scalar_model("this folder", task="slf5k")
scores = model(["a prompt"], ["a response"])
```
"""


@dataclass
class FineTuning(TrainingSettings):
    """Our settings."""

    task: str = setting("", TASK_HELP)
    data_path: str = setting("", "what to learn from", "--dataset_path", "--input_file", "--responses")
    output_dir: str = setting("", "where the trained model goes; the same command continues there", "--save_dir")
    model: str = setting("smollm2", "hub id, folder, adapter folder, or smollm2", "--model_path")
    optimizer: Literal["auto", "adamw", "adafactor"] = setting(
        "adamw", "as in policy training; --optim names TRL's others"
    )
    lora_target_modules: list[str] = setting(["all-linear"], "names of the layers to adapt, or all-linear")
    max_prompt_tokens: int = setting(640, "longer prompts are left out, and counted", "--prompt_max_length")
    max_new_tokens: int = setting(
        128, "longer responses are left out, and counted", "--max_response_tokens", "--max_tokens"
    )
    validation_share: float = setting(0.1, "share of the prompts that is held out and measured", at_least=0, below=1)

    def __post_init__(self) -> None:
        check_given(self, "task", "data_path", "output_dir")
        check_values(self)
        if self.optimizer == "auto":
            self.optimizer = "adamw" if self.deepspeed else "adafactor"
        if self.optimizer == "adafactor":
            self.optim = "adafactor"
        check_sharding(self.optim, str(self.deepspeed or ""))
        self.set_for("max_length", None, "nothing is cut; --max_prompt_tokens and --max_new_tokens leave long ones out")
        super().__post_init__()

    def adapter(self, **options: Any) -> LoraConfig | None:
        return lora_config(self, **options) if self.lora else None

    @property
    def words(self) -> str:
        """The file with the words around a prompt; none for the task's own."""
        return ""

    @property
    def base(self) -> str:
        """What the adapter that is trained is put on: a new one, on ``model`` with any older adapter merged in."""
        return self.model


@dataclass
class PolicyTuning(FineTuning):
    """Settings of what trains a policy: SFT and DPO."""

    policy_prompt: str = setting(
        "", "a file with the words that ask the policy; by default those that --model was trained with, or the task's"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        go_on_with_adapter(self)

    @property
    def words(self) -> str:
        return self.policy_prompt or carried_words(self.model)

    @property
    def base(self) -> str:
        return base_of(self.model)  # an adapter goes on itself

    def policy(self) -> dict[str, Any]:
        """The model to train, as arguments of a trainer; an adapter that exists goes on training."""
        model = load_model(self.model, self.weights_dtype, dropout=self.lora_dropout)
        return {"model": model, "peft_config": None if is_adapter(self.model) else self.adapter()}


Items = Mapping[str, tuple[str, Sequence[str]]]
"""``(x, answers)`` by id."""
Row = dict[str, list[int]]
"""What a trainer learns from, token ids by the names that it has for them."""


def encode(
    items: Items, task: Task, tokenizer: PreTrainedTokenizerBase, example: Callable[..., Row], config: FineTuning
) -> dict[str, Row]:
    """Rows by id, without those whose prompt or answers are too long."""
    rows, longest = {}, 0
    for key, (prompt, answers) in items.items():
        prompt_ids = encode_prompt(prompt, task, tokenizer)  # as the policy's sampler sees it
        answer_ids = [completion_ids(tokenizer, text) for text in answers]
        if len(prompt_ids) <= config.max_prompt_tokens and max(map(len, answer_ids)) <= config.max_new_tokens:
            rows[key] = example(prompt_ids, *answer_ids)
            longest = max(longest, len(prompt_ids) + max(map(len, answer_ids)))
    if not rows:
        raise InputError(
            f"{config.data_path}: everything is longer than --max_prompt_tokens {config.max_prompt_tokens} or "
            f"--max_new_tokens {config.max_new_tokens}; raise them"
        )
    check_positions(config.model, longest, "lower --max_new_tokens or --max_prompt_tokens")
    if len(rows) < len(items) and config.process_index == 0:
        print(f"{len(items) - len(rows)} of {len(items)} examples are too long: left out")
    return rows


def split(items: Items, rows: Mapping[str, Row], config: FineTuning) -> tuple[Dataset, Dataset | None]:
    """Training and validation data (None where nothing is held out).

    Whole prompts are held out, chosen by a hash of their text and the seed alone; never all of them.
    """

    def place(key: str) -> float:
        return int(hashlib.sha256(f"{config.seed}\0{items[key][0]}".encode()).hexdigest()[:8], 16) / 16**8

    held = {key for key in rows if place(key) < config.validation_share}
    if len(held) == len(rows):
        held = set()
    training = Dataset.from_list([row for key, row in rows.items() if key not in held])
    validation = [row for key, row in rows.items() if key in held]
    return training, Dataset.from_list(validation) if held else None


def fine_tune(
    config: FineTuning,
    method: str,
    items: Items,
    example: Callable[..., Row],
    make: Callable[..., Trainer],
    following: str,
    describe: Callable[[Trainer, Dataset, dict[str, float]], None] = lambda *_: None,
) -> None:
    """Train, and leave the adapter (or model) in ``config.output_dir``; a finished run is left as it is.

    ``run.json`` there says what was begun, and ``result.json`` that it is complete.

    Args:
        example: a row of the trainer's data, from the ids of a prompt and of each answer, which end with the end token.
        make: the trainer, from the arguments that all of TRL's take.
        following: the command that uses the result, from the repository's root.
        describe: writes what else the result needs, after training.

    Raises:
        InputError: the folder holds a run with other settings, data or base model, or another run is working there.
    """
    folder = Path(config.output_dir)
    path = folder / RUN_FILE
    begun = {"method": method, "data": fingerprint(list(items.items())), **config.decisions()}
    begun["weights"] = weights_fingerprint(config.model)
    task = asking(get_task(config.task), config.words)
    words = load_prompt(config.words, ("prompt",)) if config.words else None
    if words:
        begun["policy_prompt (its text)"] = words.fingerprint
    with claimed(folder, method):
        _, more = begin(path, load_json(path) if path.is_file() else None, begun, RESULT_FILE, config)
        if not more:
            print(f"{folder}: this training has finished; delete the folder to train again")
            return
        tokenizer = load_tokenizer(config.model)
        training, validation = split(items, encode(items, task, tokenizer, example, config), config)
        with adapting():
            trainer = make(args=config, train_dataset=training, eval_dataset=validation, processing_class=tokenizer)
        measures = run(trainer, config)
        describe(trainer, training, measures)
        if config.process_index == 0:
            if words:
                save_text(folder / POLICY_PROMPT, words.text)
            save_text(folder / "README.md", model_card(config, method, measures))
            save_json(folder / RESULT_FILE, {"method": method, "metrics": measures})
            figures = "".join(f"\n  {name} {value:.4g}" for name, value in measures.items())
            print(f"{folder}: {method} has finished, the model is in this folder{figures}")
            say_next(following)


def run(trainer: Trainer, config: FineTuning) -> dict[str, float]:
    """Train from the newest checkpoint, measure on what was held out, save the model; returns the measures."""
    if config.lora:  # a path that only this working directory resolves would be kept
        trainer.model.peft_config["default"].base_model_name_or_path = portable_base_name(config.base)
    train(trainer)
    measures = trainer.evaluate() if trainer.eval_dataset is not None else {}
    trainer.save_model()
    if config.process_index == 0:
        save_checksums(config.output_dir)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    measures |= {"first_loss": losses[0], "last_loss": losses[-1]} if losses else {}
    return {name: value for name, value in measures.items() if isinstance(value, float)}


def model_card(config: FineTuning, method: str, measures: dict[str, float]) -> str:
    """The result's README.md: data, settings, measures, and how to load it."""
    header = card_header(config.base, config.lora, [method, config.task])
    loading = card_loading(config.base, config.lora)
    if method == "scalar_reward":
        header = header.replace("text-generation", "text-classification")
        loading = _LOADING_SCALAR.replace("slf5k", config.task)
    settings = "\n".join(f"- {name}: {value}" for name, value in config.decisions().items() if name != "task")
    settings += changes_shown(load_json(Path(config.output_dir) / RUN_FILE).get("changes", []))
    figures = "\n".join(f"- {name}: {value:.4g}" for name, value in measures.items()) or "- nothing"
    return f"""{header}
# {config.model}, after {method} on {config.task}

- data: {Path(config.data_path).name}
{settings}

Measured at the end of training (`eval_…`: on held-out prompts):

{figures}

{loading}"""
