"""Fold a reward model's LoRA adapter into its base, so that any server can run it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from peft import PeftModel

from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, PROMPT_FILE
from text2grad.errors import InputError
from text2grad.models import base_of, is_adapter, load_model, merge_adapter
from text2grad.records import check_writable


@dataclass
class MergeConfig:
    """The published flags."""

    lora_model: str = field(
        default="", metadata={"help": "The adapter's folder: a reward model, or a checkpoint of one."}
    )
    save_dir: str = field(default="", metadata={"help": "Where the whole model goes."})
    base_model: str = field(
        default="", metadata={"help": "The model it was trained on; the adapter's own if not given."}
    )
    merge_and_save: bool = field(default=True, metadata={"help": "False checks that the two fit, and writes nothing."})

    def __post_init__(self) -> None:
        for name in ("lora_model", "save_dir"):
            if not getattr(self, name):
                raise InputError(f"--{name}: is not given; see --help")


def merge(config: MergeConfig) -> None:
    """Write the merged model, its tokenizer, and what says how to ask it (prompt and description).

    Raises:
        InputError: no adapter there, or not one of this base.
    """
    adapter, output = Path(config.lora_model), Path(config.save_dir)
    if not is_adapter(str(adapter)):
        raise InputError(f"{adapter}: holds no adapter_config.json; give the folder of a LoRA adapter")
    check_writable(output / DESCRIPTION_FILE)
    base = config.base_model or None
    try:
        if config.merge_and_save:
            merge_adapter(str(adapter), output, base)
        else:
            PeftModel.from_pretrained(load_model(base or base_of(str(adapter))), str(adapter))
    except (RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{adapter}: does not fit {config.base_model or 'its base'}: {error}") from None
    if not config.merge_and_save:
        print(f"{adapter}: fits its base; nothing written (--merge_and_save False)")
        return
    for name in (DESCRIPTION_FILE, PROMPT_FILE):
        if (adapter / name).is_file():
            shutil.copyfile(adapter / name, output / name)
    print(f"{output}: merged model")
