"""Fold a reward model's LoRA adapter into its base, so that any server can run it.

python nl_reward_model/merge_lora.py --model reward_model --output_dir reward_model_merged
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError

from nl_reward_model.card import reward_model_card
from text2grad.configs import check_given, parse, setting
from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, PROMPT_FILE, RewardModelDescription
from text2grad.errors import InputError, command
from text2grad.models import adapter_config, base_of, is_adapter, load_model, merge_adapter
from text2grad.prompts import POLICY_PROMPT
from text2grad.records import check_folder, check_writable, save_text
from text2grad.tasks.commands import SERVE, quoted, say_next, stage_command


@dataclass
class MergeConfig:
    """Which adapter, and where the whole model goes."""

    model: str = setting("", "the adapter's folder, or a checkpoint in it", "--lora_model", "--model_path")
    output_dir: str = setting("", "where the whole model goes", "--save_dir")
    base_model: str = setting("", "the model it was trained on; by default the one that the adapter names")
    merge_and_save: bool = setting(True, "false checks that the two fit, and writes nothing")

    def __post_init__(self) -> None:
        check_given(self, "model", "output_dir")


def merge(config: MergeConfig) -> None:
    """Write the merged model, its tokenizer, and what says how to ask it (prompt and description, a policy's words).

    Raises:
        InputError: no adapter there, or not one of this base; or files where the model goes.
    """
    adapter, output = Path(config.model), Path(config.output_dir)
    if not is_adapter(str(adapter)):
        raise InputError(f"{adapter}: holds no adapter_config.json; give the folder of a LoRA adapter")
    trained = adapter_config(str(adapter)).base_model_name_or_path
    check_folder(output, empty=True)
    if config.merge_and_save:
        check_writable(output / DESCRIPTION_FILE)
    base = config.base_model or None
    try:
        if config.merge_and_save:
            merge_adapter(str(adapter), output, base)
        else:
            PeftModel.from_pretrained(load_model(base or base_of(str(adapter))), str(adapter))
    except InputError:
        raise
    except (RuntimeError, ValueError, SafetensorError, UserWarning) as error:
        if "os error 28" in str(error):
            raise InputError(f"{output}: the disk is full; free some space, delete it and run again") from None
        raise InputError(
            f"{adapter}: is damaged, or does not fit {base or 'its base'}; it was trained from {trained}"
        ) from error
    if not config.merge_and_save:
        print(f"{adapter}: fits its base; nothing written (--merge_and_save False)")
        return
    print(f"merged model: {output}")
    for name in (DESCRIPTION_FILE, PROMPT_FILE, POLICY_PROMPT):
        if (adapter / name).is_file():
            shutil.copyfile(adapter / name, output / name)
    if (adapter / DESCRIPTION_FILE).is_file():
        description, prompt = RewardModelDescription.load(adapter)
        save_text(output / "README.md", reward_model_card(description, prompt, adapter=False))
        train = stage_command("policy", description.task, description.task_source)
        say_next(
            f"serve the folder, {SERVE} {quoted(output)} --served-model-name reward_model, and train with it, "
            f"{train} --critic http://localhost:8000/v1#reward_model --critic_prompt {quoted(output / PROMPT_FILE)} "
            "--data_path PROMPTS --output_dir RUN"
        )


@command
def main() -> None:
    merge(parse(MergeConfig))


if __name__ == "__main__":
    main()
