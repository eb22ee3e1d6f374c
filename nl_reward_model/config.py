"""Settings of reward-model training: ours, and all of TRL's ``SFTConfig``."""

from dataclasses import dataclass
from typing import Any, Literal

from trl import SFTConfig

from text2grad.configs import check_given, check_values, setting
from text2grad.errors import InputError
from text2grad.journal.settings import TrainingSettings
from text2grad.models import go_on_with_adapter


@dataclass
class RewardModelConfig(TrainingSettings, SFTConfig):
    """``max_prompt_tokens`` bounds the prompt, ``max_length`` the prompt and z together, in tokens."""

    data_path: str = setting("", "annotated records of stage 1: a file, or a data set of the hub")
    model: str = setting(
        "smollm2",
        "the model to train: hub id, folder, GGUF file, or smollm2; the folder of an adapter goes on training",
    )
    validation_path: str | None = setting(None, "annotated records to validate on")
    validation_share: float = setting(
        0.1, "share of data_path that is held out, by whole prompts; or validation_path", at_least=0, below=1
    )
    prompt: str = setting(
        "cot", "cot or no_cot (the task's prompts/), or a file of your own", "--prompt_file", "--prompt_variant"
    )
    critique: bool = setting(True, "false: spans alone, without a critique (the paper's section 4.5)")
    verdict: bool = setting(True, "z ends with what is missing and the verdict, if every record has one")
    first_word_weight: float = setting(
        1.0,
        "weight in training of the first token that tells one z from another: in kodcode Right or Wrong",
        above=0,
    )
    max_prompt_tokens: int = setting(900, "tokens that the prompt may have", "--prompt_max_length")
    max_length: int = setting(1400, "tokens that prompt and feedback may have together")
    shorten: Literal["none", "tail", "middle"] = setting("none", "what may be cut from a post or question too long")
    responses_per_row: int = setting(
        1, "responses to one prompt that share a row, which reads the prompt once; batch sizes count rows", above=0
    )
    lora_target_modules: list[str] = setting(["q_proj", "v_proj"], "names of the layers to adapt, or all-linear")
    feedback_records: int = setting(
        16, "validation records that the model writes feedback on at each evaluation; 0 for none", "--judge_records"
    )
    feedback_batch_size: int = setting(8, "records of these at one time", "--judge_batch_size", above=0)

    def __post_init__(self) -> None:
        check_values(self)
        check_given(self, "data_path", "output_dir")
        if not 0 < self.max_prompt_tokens < self.max_length:
            raise InputError(
                f"--max_prompt_tokens {self.max_prompt_tokens} must lie between 0 and --max_length {self.max_length}, "
                "which has to hold the feedback too"
            )
        if self.responses_per_row > 1 and self.packing:
            raise InputError("--packing true: rows of --responses_per_row are packed already; leave one of the two out")
        if self.first_word_weight != 1 and (self.packing or self.loss_type != "nll" or self.label_smoothing_factor):
            raise InputError(
                "--first_word_weight: only with the plain loss: no --packing, --loss_type, --label_smoothing_factor"
            )
        if self.responses_per_row > 1:  # the rows are ready: TRL has nothing to prepare, and no column to drop
            self.dataset_kwargs: dict[str, Any] = {**(self.dataset_kwargs or {}), "skip_prepare_dataset": True}
            self.remove_unused_columns = False
        super().__post_init__()
        if self.load_best_model_at_end and self.save_strategy == "steps" and self.save_steps != self.eval_steps:
            raise InputError(
                f"--save_steps {self.save_steps}, --eval_steps {self.eval_steps}: the best weights would be lost where "
                "they are not saved; give both the same, or --load_best_model_at_end false"
            )
        go_on_with_adapter(self)
