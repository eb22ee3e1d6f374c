"""Every setting of stage 3. A task's ``config.yaml`` holds its defaults; any field is a flag on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Literal

from text2grad.configs import check_choices, check_given, check_positive, setting
from text2grad.critics import CRITIC_FORMS
from text2grad.errors import InputError
from text2grad.losses import KLKind
from text2grad.models import long_dtype_name
from text2grad.models.hub import PUSH_HELP, check_repository
from text2grad.token_rewards import Scheme

TeacherKind = Literal["off", "weight", "gate", "distill", "gate+distill", "all"]
Placement = Literal["token", "last_sum", "last_mean"]
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "none": "text2grad"}
_POSITIVE = (
    "temperature", "max_prompt_tokens", "max_new_tokens", "epochs", "rollouts_per_prompt", "ppo_epochs", "minibatches",
    "micro_batch_size", "save_total_limit",
)  # fmt: skip


@dataclass
class PolicyConfig:
    """Settings of one run. A *step* is one cycle of rollouts, feedback and updates; an *update* one optimiser step."""

    # the run
    data_path: str = setting(
        "",
        "records of the task (JSON, JSONL, CSV or Parquet), or a data set of the hub; only prompts are used",
        "--dataset_path",
        "--input_file",
        "--responses",
    )
    output_dir: str = setting(
        "", "the run's folder; the same command goes on from its newest complete checkpoint", "--save_dir"
    )
    method: str = setting("text2grad", "the run's name in reports")
    seed: int = setting(42, "decides the order of prompts, sampling and minibatches")
    epochs: float = setting(4.0, "passes over the prompts")
    max_steps: int = setting(-1, "stop after this many steps; -1: as many as --epochs makes")
    allow_changed: bool = setting(
        False, "continue a run with other settings than it was begun with; run.json keeps which applied from which step"
    )

    # policy
    model: str = setting(
        "", "the policy: hub id, folder, adapter folder (training continues), or smollm2", "--model_path"
    )
    reference: str = setting("", "with --lora_r 0: the reference model (default: --model itself)")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64", "fp32", "bf16", "fp16"] = setting(
        "auto", "of the model's weights; auto: what the device computes fast", "--precision"
    )
    lora_r: int = setting(16, "rank of the LoRA adapter; 0 trains all weights")
    lora_alpha: int = setting(32, "LoRA's alpha")
    lora_dropout: float = setting(0.05, "dropout inside the adapter, during updates only")
    lora_target_modules: list[str] = setting(["all-linear"], "names of the layers to adapt, or all-linear")
    deepspeed: str = setting("", "a DeepSpeed file (ZeRO-1, 2 or 3) for several devices; without it they run DDP")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass: less memory, more time")
    head_chunk: int = setting(0, "response positions whose vocabulary scores are in memory at one time; 0: fit them")

    # rollouts
    rollouts_per_device: int = setting(12, "responses per step on each device")
    rollouts_per_prompt: int = setting(1, "responses to each prompt of a step")
    rollouts_ahead: bool = setting(
        False, "sample the next step's responses before this step's updates, so that an API critic can score them then"
    )
    max_prompt_tokens: int = setting(640, "longer prompts are left out, and counted", "--prompt_max_length")
    max_new_tokens: int = setting(
        128, "sampling ends here; such a response counts as unfinished", "--max_response_tokens", "--max_tokens"
    )
    temperature: float = setting(1.0, "of sampling, and of all log-probabilities alike")
    top_p: float = setting(1.0, "must stay 1: a cut distribution is not the one that is optimised")
    top_k: int = setting(0, "must stay 0, for the same reason")
    repetition_penalty: float = setting(1.0, "must stay 1, for the same reason; see --repeat_ngram")
    generation: Literal[
        "auto", "transformers", "decoder", "continuous", "vllm_server", "vllm_nccl", "vllm_colocate"
    ] = setting(
        "auto", "what samples; decoder: our own, for Llama-like models on a CPU; auto: decoder or else transformers"
    )
    generation_batch_size: int = setting(0, "responses sampled at one time on a device; 0: all of a step's")
    vllm_url: list[str] = setting([], "for vllm_server: http://HOST:PORT of one or more servers; for vllm_nccl of one")
    vllm_timeout: float = setting(600.0, "for vllm_server: seconds that a request may take, or a server stay away")
    vllm_gpu_memory: float = setting(0.3, "for vllm_colocate: share of each GPU's memory")
    sampler_limit: float | None = setting(
        0.2, "stop when the log-probabilities of what samples differ by more nats a token from the policy's; 0: never"
    )

    # critic
    critic: str = setting("programmatic", f"who gives feedback: {CRITIC_FORMS}", "--annotator")
    critique: bool = setting(True, "false: spans alone, without a critique (the paper's section 4.5)")
    critic_prompt: str = setting("", "for an endpoint: its prompt file (a served reward model's reward_prompt.txt)")
    critic_variant: str = setting("", "for an endpoint: cot, no_cot or dense, where the prompt file does not say it")
    critic_max_new_tokens: int = setting(
        0,
        "for an endpoint: tokens of a reply; 0: 1024, or what a served reward model's folder says",
        "--critic_max_tokens",
    )
    critic_temperature: float = setting(
        0.0, "for an endpoint: its sampling temperature; for a folder: that of its second and later --critic_votes"
    )
    critic_retries: int = setting(6, "for an endpoint: how often a request is sent again")
    critic_concurrency: int = setting(16, "for an endpoint: requests at one time, on each rank")
    critic_timeout: float = setting(120.0, "for an endpoint: seconds until a request counts as failed and is repeated")
    critic_max_cost_usd: float | None = setting(None, "for an endpoint: stop before a run costs more, on each rank")
    critic_batch_size: int = setting(8, "for a reward model's folder: responses in one batch")
    critic_constrained: Literal["none", "json", "quotes"] = setting(
        "none", "for a reward model's folder: what its replies must be; quotes: JSON that quotes the response"
    )
    critic_min_probability: float = setting(0.0, "for a reward model's folder: leave out quotes it wrote with less")
    critic_votes: int = setting(
        1, "for a reward model's folder or an endpoint: opinions on each response, whose mean is δ"
    )
    max_critic_failures: float = setting(0.5, "stop when more than this share of a step's critiques failed")
    run_tests: bool | None = setting(
        None,
        "run each response's unit tests and show the critic their log; by default where its prompt has a place for it",
    )

    # teacher: the policy, once it has read the critique
    teacher: TeacherKind = setting(
        "off",
        "what the critique's words change: the size of labels (weight), labels it contradicts (gate), what to write in "
        "place of poor spans (distill), or every token, without quotes (all: SDPO)",
    )
    teacher_prompt: str = setting("", "file of what the teacher reads; by default the task's prompts/teacher.txt")
    teacher_weights: Literal["reference", "average"] = setting(
        "reference", "the teacher's weights: the reference's, or a moving average of the policy's"
    )
    teacher_rate: float = setting(0.05, "of the average: how far it moves towards the policy in each step")
    teacher_clip: float = setting(0.2, "weight: a label's size stays within 1 ± this")
    teacher_scale: float = setting(0.1, "gate: nats of disagreement over which a label shrinks")
    teacher_unit: Literal["span", "token"] = setting("span", "gate: what the teacher agrees or disagrees with")
    teacher_coef: float = setting(1.0, "distill, all: weight of the divergence from the teacher")
    teacher_steps: int = setting(0, "distill, all: steps over which that weight falls to 0; 0: it stays")
    teacher_top_k: int = setting(
        100, "distill, all: tokens of the vocabulary that are compared; the rest counts as one"
    )
    teacher_alpha: float = setting(
        1.0, "distill, all: 1 is KL of the policy from the teacher, 0 of the teacher from the policy, ½ Jensen-Shannon"
    )

    critique_coef: float = setting(
        0.0, "weight of a second loss: the policy learns to write the critique of its own response (RLTF-FM); 0: off"
    )

    # audit: a trusted critic beside the one that rewards
    audit_critic: str = setting("", "also asked about a share of the rollouts, for the log alone; as --critic")
    audit_share: float = setting(0.05, "of the rollouts, which --audit_critic is asked about")
    audit_prompt: str = setting("", "for an endpoint as --audit_critic: its prompt file")
    audit_flip_limit: float | None = setting(
        None, "stop when the two disagree about the sign of more than this share of tokens in 20 steps; 0: never"
    )
    audit_gap_limit: float | None = setting(
        None, "stop when mean δ of 20 steps is by more than this above --audit_critic's; 0: never"
    )

    # refresh: a reward model that goes on learning, from what the trusted critic says of the latest rollouts
    refresh_every: int = setting(
        0, "steps after which the reward model in --critic learns from --audit_critic's feedback; 0: never"
    )
    refresh_records: int = setting(16, "rollouts, over all devices, that --audit_critic annotates for each refresh")
    refresh_updates: int = setting(8, "updates of the reward model in each refresh")
    refresh_batch_size: int = setting(16, "records of one such update; half of them from --refresh_data, if given")
    refresh_learning_rate: float = setting(1e-4, "of the reward model")
    refresh_data: str = setting("", "annotated records that the reward model learnt from, so that it forgets none")

    # rewards and their shaping
    scheme: Scheme = setting("uniform", "how a span's reward spreads over its tokens")
    reward_placement: Placement = setting(
        "token", "on which tokens rewards lie: their own, or all on the last one (scalar baselines)"
    )
    outcome_coef: float = setting(
        0.0, "on the last token: this much where the critic found nothing poor, its negative where it did"
    )
    empty_reward: float = setting(-1.0, "on the last token of a response without text (no critic sees it)")
    unfinished_reward: float = setting(0.0, "added on the last token of a response that the length limit cut off")
    min_response_tokens: int = setting(0, "responses with fewer tokens get --short_reward for each that is missing")
    short_reward: float = setting(-1.0, "added on the last token for each token short of --min_response_tokens")
    repeat_ngram: int = setting(0, "tokens that end an n-gram seen before in the response get --repeat_reward; 0: off")
    repeat_reward: float = setting(-1.0, "added on tokens that repeat")

    # KL to the reference
    kl: KLKind = setting("full", "kind of KL per token")
    kl_coef: float = setting(0.2, "β of the KL penalty (its start, where a target is set)")
    kl_target: float | None = setting(6.0, "nats per response that β is steered to; 0 keeps β fixed")
    kl_horizon: float = setting(10_000, "rollouts over which β may change by 20 %")

    # advantages
    advantage: Literal["gae", "group"] = setting(
        "gae", "gae: with a value head; group: against the other rollouts of a prompt, without a value head"
    )
    gamma: float = setting(1.0, "discount γ")
    lam: float = setting(0.95, "λ of the advantage estimate")
    value_target: Literal["lambda", "rewards"] = setting(
        "lambda", "what the value head learns: A + V, or the discounted sum of the rewards to come"
    )
    whiten_advantages: bool = setting(True, "to mean 0 and variance 1 over all response tokens of a step")

    # PPO
    ppo_epochs: int = setting(4, "passes of updates over a step's rollouts")
    minibatches: int = setting(1, "updates per pass")
    micro_batch_size: int = setting(1, "responses in one forward and backward pass")
    clip_range: float = setting(0.2, "ε of PPO's ratio clip")
    value_clip_range: float | None = setting(0.2, "how far a value may move from its rollout's in one step; 0: any")
    value_coef: float = setting(0.1, "c_v, weight of the value loss")
    entropy_coef: float = setting(0.0, "β_H, weight of the entropy bonus")
    update_kl_limit: float | None = setting(
        None, "end a step's updates once they moved a token by this KL on average; 0: never"
    )

    # optimiser
    optimizer: Literal["adafactor", "adamw"] = setting("adafactor", "of the policy")
    learning_rate: float = setting(1e-6, "of the policy")
    lr_schedule: Literal["linear", "cosine", "constant"] = setting("linear", "of the learning rate, over all updates")
    warmup_ratio: float = setting(0.0, "share of the updates over which the rate rises")
    weight_decay: float = setting(0.0, "of the policy's weights")
    max_grad_norm: float = setting(1.0, "clip the policy's gradient to this norm")
    value_learning_rate: float = setting(1e-2, "of the value head")
    value_max_grad_norm: float = setting(1.0, "clip the value head's gradient to this norm")

    # when to stop
    kl_limit: float | None = setting(None, "stop the run when the mean KL of a response exceeds this; 0: never")
    patience: int = setting(0, "stop when the mean δ of 5 steps has no new best for this many steps; 0: never")
    stop_grad_norm: float = setting(1e4, "a gradient norm above this stops the run and saves the batch")

    # checkpoints and logs
    save_every: int = setting(
        50, "steps between checkpoints (one more is written at the end); 0: only at the end", "--save_steps"
    )
    save_total_limit: int = setting(2, "checkpoints to keep")
    keep_policies: bool | None = setting(
        None,
        "keep the policy of every checkpoint in RUN/policies, to evaluate it; by default adapters, no whole models",
    )
    log_rollouts_every: int = setting(
        10, "rescore the rollouts (new_logprobs) and print one every so many steps; 0: never"
    )
    report_to: list[str] = setting(["tensorboard"], "tensorboard, wandb, trackio (several), or none")
    push_to_hub: str = setting("", PUSH_HELP)
    merge: bool = setting(False, "at the end, also write the whole model (adapter folded in) to RUN/merged")

    def __post_init__(self) -> None:
        for item in fields(self):  # YAML reads 1e-6 as text
            value = getattr(self, item.name)
            if item.type in ("float", "float | None") and isinstance(value, str):
                setattr(self, item.name, float(value))
        self.dtype = long_dtype_name(self.dtype)

    @property
    def distils(self) -> bool:
        """Whether the loss needs the teacher's distribution, and not only its view of the sampled tokens."""
        return self.teacher in ("distill", "gate+distill", "all")

    @property
    def keeps_policies(self) -> bool:
        return self.lora_r > 0 if self.keep_policies is None else self.keep_policies

    def check(self) -> None:
        """Raise ``InputError`` for settings that cannot work, before anything is loaded."""
        check_choices(self)
        check_repository(self.push_to_hub)
        check_given(self, "model", "data_path", "output_dir")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{item.name} {value}: must be a finite number")
        check_positive(self, *_POSITIVE)
        if self.head_chunk < 0:
            raise InputError(f"--head_chunk must not be below 0, as {self.head_chunk} is")
        self._check_sampling()
        if self.generation in ("vllm_server", "vllm_nccl") and not self.vllm_url:
            raise InputError(f"--generation {self.generation} needs --vllm_url http://HOST:PORT, where the server is")
        if self.generation == "vllm_nccl" and len(self.vllm_url) > 1:
            raise InputError("--generation vllm_nccl takes one --vllm_url; vllm_server takes several")
        self._check_division("--rollouts_per_prompt", self.rollouts_per_prompt)
        self._check_division("--minibatches times --micro_batch_size", self.minibatches * self.micro_batch_size)
        for name in self.report_to:
            if name not in _TRACKERS or not find_spec(_TRACKERS[name]):
                raise InputError(f"--report_to {name}: not installed, or no such tracker; pip install {name}, or none")
        if self.advantage == "group" and self.rollouts_per_prompt < 2:
            raise InputError("--advantage group compares a prompt's rollouts; set --rollouts_per_prompt to 2 or more")
        if not 0 <= self.critic_min_probability < 1:
            raise InputError(f"--critic_min_probability must be in 0..1, not {self.critic_min_probability}")
        if self.critic_votes < 1 or (self.critic_votes > 1 and not self.critic_temperature):
            raise InputError("--critic_votes takes 1 or more; with more than 1 set --critic_temperature, say to 0.7")
        self._check_teacher()
        if self.critic_max_new_tokens < 0 or self.critic_temperature < 0 or self.critic_retries < 0:
            raise InputError("--critic_max_new_tokens, --critic_temperature and --critic_retries must not be below 0")
        if not 0 < self.audit_share <= 1:
            raise InputError(f"--audit_share must be above 0 and at most 1, not {self.audit_share}")
        if (self.audit_flip_limit or self.audit_gap_limit) and not self.audit_critic:
            raise InputError("--audit_flip_limit and --audit_gap_limit need --audit_critic, the trusted critic")
        self._check_refresh()

    def _check_refresh(self) -> None:
        if self.refresh_every < 0:
            raise InputError(f"--refresh_every {self.refresh_every}: give a number of steps, or 0 for never")
        if self.refresh_data and not self.refresh_every:
            raise InputError("--refresh_data is read by --refresh_every alone; give both or none")
        check_positive(self, "refresh_records", "refresh_updates", "refresh_batch_size", "refresh_learning_rate")
        if self.refresh_every and not self.audit_critic:
            raise InputError("--refresh_every needs --audit_critic, the trusted critic that annotates")

    def _check_teacher(self) -> None:
        for name, low, high in (
            ("teacher_rate", 0, 1), ("teacher_clip", 0, 1), ("teacher_alpha", 0, 1), ("teacher_coef", 0, None),
            ("critique_coef", 0, None),
            ("teacher_steps", 0, None), ("teacher_top_k", 1, None),
        ):  # fmt: skip
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise InputError(f"--{name} must be {f'in {low}..{high}' if high else f'{low} or more'}, not {value}")
        if not self.critique and (self.teacher != "off" or self.critique_coef):
            raise InputError("--critique false: leaves --teacher and --critique_coef nothing to read; leave one away")
        if self.teacher_scale <= 0:
            raise InputError(f"--teacher_scale must be above 0, not {self.teacher_scale}")
        if self.teacher in ("weight", "gate", "gate+distill") and self.reward_placement != "token":
            raise InputError(
                f"--teacher {self.teacher} changes the labels of tokens; leave --reward_placement at token"
            )
        if self.teacher != "off" and self.teacher_weights == "average" and self.deepspeed:
            raise InputError("--teacher_weights average is for runs without --deepspeed; use reference")

    def _check_sampling(self) -> None:
        for name, neutral in (("top_p", 1.0), ("top_k", 0), ("repetition_penalty", 1.0)):
            if getattr(self, name) != neutral:
                raise InputError(
                    f"--{name} {getattr(self, name)} would sample from another distribution than the one that is "
                    f"optimised; leave it at {neutral} and use --temperature, or a reward such as --repeat_ngram"
                )

    def _check_division(self, divisor: str, parts: int) -> None:
        if self.rollouts_per_device % parts:
            raise InputError(
                f"--rollouts_per_device {self.rollouts_per_device} cannot be divided by {divisor} ({parts}); "
                "change one of them"
            )
