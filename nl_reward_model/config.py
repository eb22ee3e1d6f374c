"""Settings of reward-model training: ours, and all of TRL's ``SFTConfig``."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from trl import SFTConfig

from text2grad.critics.reward_model.prompt import SHORTEN
from text2grad.errors import InputError
from text2grad.models import best_device, best_dtype
from text2grad.models.deepspeed_setup import begin_deepspeed

PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass
class RewardModelConfig(SFTConfig):
    """``prompt_max_length`` and ``max_length`` bound the prompt, and prompt plus z, in tokens."""

    data_path: str = field(default="", metadata={"help": "Annotated records (JSON or JSONL) of stage 1."})
    model: str = field(default="smollm2", metadata={"help": "Hub id, folder, GGUF file, or smollm2."})
    validation_path: str | None = field(default=None, metadata={"help": "Annotated records to validate on."})
    validation_share: float = field(
        default=0.1,
        metadata={"help": "Share of data_path held out, by whole prompts, where validation_path is not given."},
    )
    prompt: str = field(default="cot", metadata={"help": "cot, no_cot (prompts/ of the task), or a prompt file."})
    prompt_max_length: int = field(default=900, metadata={"help": "Tokens that the prompt may have."})
    max_length: int = field(default=1400, metadata={"help": "Tokens that prompt and judgement may have together."})
    shorten: str = field(default="none", metadata={"help": f"What may be cut from x: {', '.join(SHORTEN)}."})
    precision: str = field(
        default="auto", metadata={"help": "auto (what the device computes natively), fp32, bf16, fp16."}
    )
    lora: bool = field(default=True, metadata={"help": "Train a LoRA adapter; false trains all weights."})
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "v_proj"], metadata={"help": "Module names, or all-linear."}
    )
    judge_records: int = field(
        default=16, metadata={"help": "Validation records that the model judges at each evaluation; 0 for none."}
    )
    judge_batch_size: int = 8

    def __post_init__(self) -> None:
        if not self.data_path:
            raise InputError("--data_path: names no file; give the annotated records of stage 1")
        if self.output_dir is None:
            raise InputError("--output_dir: names no folder; give one for the reward model")
        if self.precision not in PRECISIONS:
            raise InputError(f"--precision: {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if not 0 < self.prompt_max_length < self.max_length:
            raise InputError(
                f"--prompt_max_length {self.prompt_max_length} must lie between 0 and --max_length {self.max_length}, "
                "which has to hold the judgement too"
            )
        self.use_cpu = best_device() == "cpu"
        self.bf16, self.fp16 = self.compute_dtype is torch.bfloat16, self.compute_dtype is torch.float16
        if self.deepspeed:
            begin_deepspeed(self.use_cpu)
        super().__post_init__()

    @property
    def compute_dtype(self) -> torch.dtype:
        """What products are computed in."""
        named = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return best_dtype() if self.precision == "auto" else named[self.precision]

    @property
    def weights_dtype(self) -> torch.dtype:
        """What the model is loaded in: weights that train keep float32 copies, here or inside DeepSpeed."""
        return self.compute_dtype if self.lora or self.deepspeed else torch.float32
