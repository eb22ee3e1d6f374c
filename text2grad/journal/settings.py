"""The settings that every training by a ``transformers`` Trainer has, and which of all decide its result."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from text2grad.configs import setting
from text2grad.errors import InputError
from text2grad.models import DtypeName, best_device, long_dtype_name, named_dtype
from text2grad.models.deepspeed_setup import begin_deepspeed

if TYPE_CHECKING:
    from transformers import TrainingArguments as _Mixed  # has the settings that are not ours
else:
    _Mixed = object

_DECIDING = (
    "task", "model", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "dtype", "shorten",
    "max_prompt_tokens", "max_length", "max_new_tokens", "learning_rate", "lr_scheduler_type", "warmup_steps",
    "optimizer", "optim", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
    "num_train_epochs", "max_steps", "seed", "per_device_train_batch_size", "gradient_accumulation_steps",
    "train_sampling_strategy", "validation_share", "responses_per_row", "critique", "verdict", "packing", "loss_type",
    "beta", "label_smoothing", "label_smoothing_factor", "center_rewards_coefficient", "first_word_weight",
    "f_divergence_type", "disable_dropout", "loss_weights", "ld_alpha", "use_weighting", "data_seed",
    "neftune_noise_alpha", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "packing_strategy",
    "lr_scheduler_kwargs", "optim_args", "f_alpha_divergence_coef", "discopop_tau",
)  # fmt: skip


@dataclass
class TrainingSettings(_Mixed):
    """Mixed into the config of a TRL trainer, whose own settings are flags as well."""

    dtype: DtypeName = setting("auto", "number type of computation; auto is what the device is fast in", "--precision")
    lora_r: int = setting(16, "rank of the LoRA adapter; 0 trains all weights")
    lora: bool = setting(True, "false is another spelling of --lora_r 0")
    lora_alpha: int = setting(32, "LoRA's alpha")
    lora_dropout: float = setting(0.05, "dropout inside the adapter")
    allow_changed: bool = setting(
        False, "continue a run with other settings than it was begun with; run.json and the card keep which and when"
    )

    def __post_init__(self) -> None:
        self.lora_r = self.lora_r if self.lora else 0
        self.lora = self.lora_r > 0
        self.dtype = long_dtype_name(self.dtype)
        for name, value, remedy in (
            ("use_cpu", best_device() == "cpu", "CUDA_VISIBLE_DEVICES= before the command hides the GPUs"),
            ("bf16", self.compute_dtype is torch.bfloat16, "--dtype names the number type"),
            ("fp16", self.compute_dtype is torch.float16, "--dtype names the number type"),
            ("resume_from_checkpoint", None, "a run goes on from the newest checkpoint in --output_dir by itself"),
        ):
            self.set_for(name, value, remedy)
        if self.deepspeed:
            begin_deepspeed(self.use_cpu)
        super().__post_init__()
        if self.n_gpu > 1:  # transformers would split every batch among them, which TRL's trainers refuse
            print(f"training on one of {self.n_gpu} GPUs; deepspeed_train_TASK.sh and baselines/run.sh use all of them")
            self._n_gpu = 1

    def set_for(self, name: str, value: Any, remedy: str) -> None:
        """A setting of TRL's that ours decide. Raises :class:`InputError` if it was given and says otherwise."""
        if (given := getattr(self, name)) not in (value, getattr(type(self), name)):
            raise InputError(f"--{name} {given}: {remedy}; leave this one out")
        setattr(self, name, value)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What products are computed in."""
        return named_dtype(self.dtype)

    @property
    def weights_dtype(self) -> torch.dtype:
        """What the model is loaded in: weights that train keep float32 copies, here or inside DeepSpeed."""
        return self.compute_dtype if self.lora or self.deepspeed else torch.float32

    def decisions(self) -> dict[str, Any]:
        """What decides the result, by name; a run is only resumed with the same."""
        given = {name: getattr(self, name, None) for name in _DECIDING}
        plugin = self.deepspeed_plugin
        given |= {"ranks": self.world_size, "zero_stage": plugin.zero_stage if plugin else 0}
        return {name: getattr(value, "value", value) for name, value in given.items() if value is not None}
