"""Every setting of stage 3. A task's ``config.yaml`` holds its defaults; any field is a flag on the command line.

Settings are small dataclasses by subject, which :class:`PolicyConfig` puts together. The algorithm has its own;
all fields are flags, and ``run.json`` lists them under one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, make_dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from nl_gradient_policy_optimization.algorithms import ALGORITHMS, algorithm_class
from text2grad.configs import check_given, check_used, check_values, setting
from text2grad.critics import is_endpoint, is_served
from text2grad.critics.settings import CriticChoice
from text2grad.errors import InputError
from text2grad.losses import KLKind
from text2grad.models import go_on_with_adapter, long_dtype_name
from text2grad.prompts import carried_words
from text2grad.token_rewards import Scheme

if TYPE_CHECKING:
    from nl_gradient_policy_optimization.algorithms.base import Algorithm
else:
    Algorithm = Any  # its module loads torch, which --help need not wait for

_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "none": "text2grad"}


@dataclass
class RunSettings:
    """The run."""

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
    method: str = setting("", "the run's name in reports; by default the algorithm's")
    seed: int = setting(42, "decides the order of prompts, sampling and minibatches")
    epochs: float = setting(4.0, "passes over the prompts", "--num_train_epochs", above=0)
    max_steps: int = setting(-1, "stop after this many steps; -1: as many as --epochs makes")
    allow_changed: bool = setting(
        False, "continue a run with other settings than it was begun with; run.json keeps which applied from which step"
    )


@dataclass
class PolicySettings:
    """The policy and its reference."""

    model: str = setting(
        "", "the policy: hub id, folder, adapter folder (training continues), or smollm2", "--model_path"
    )
    policy_prompt: str = setting(
        "",
        "a file with the words that ask the policy, ${prompt} among them; by default those that --model was trained "
        "with, or the task's policy.txt",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64", "fp32", "bf16", "fp16"] = setting(
        "auto", "of the model's weights; auto: what the device computes fast", "--precision"
    )
    lora_r: int = setting(16, "rank of the LoRA adapter; 0 trains all weights")
    lora_alpha: int = setting(32, "LoRA's alpha")
    lora_dropout: float = setting(0.05, "dropout inside the adapter, during updates only")
    lora_target_modules: list[str] = setting(["all-linear"], "names of the layers to adapt, or all-linear")
    deepspeed: str = setting("", "a DeepSpeed file (ZeRO-1, 2 or 3) for several devices; without it they run DDP")
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass: less memory, more time")


@dataclass
class SamplingSettings:
    """The rollouts."""

    rollouts_per_device: int = setting(12, "responses per step on each device", "--batch_size")
    rollouts_per_prompt: int = setting(1, "responses to each prompt of a step", above=0)
    rollouts_ahead: bool | None = setting(
        None,
        "sample the next step's responses before this step's updates, during which the critic judges them; by default "
        "where the critic is an endpoint",
    )
    max_prompt_tokens: int = setting(640, "longer prompts are left out, and counted", "--prompt_max_length")
    max_new_tokens: int = setting(
        128,
        "sampling ends here; such a response counts as unfinished",
        "--max_response_tokens",
        "--max_tokens",
        above=0,
    )
    temperature: float = setting(1.0, "of sampling, and of all log-probabilities alike", above=0)
    generation: Literal["auto", "transformers", "decoder", "vllm_server"] = setting(
        "auto", "what samples; decoder: our own, for Llama-like models; auto: decoder or else transformers"
    )
    generation_batch_size: int = setting(0, "responses sampled together on a device; 0: all of a step's", at_least=0)
    vllm_url: list[str] = setting([], "for vllm_server: http://HOST:PORT of one or more servers")
    vllm_timeout: float = setting(
        600.0, "for vllm_server: seconds that a request may take, or a server stay away", above=0
    )


@dataclass
class CriticSettings(CriticChoice):
    """The critic."""

    critique: bool = setting(True, "false: spans without a critique (the paper's section 4.5)")
    critic_variant: str = setting("", "for an endpoint: cot, no_cot or dense, where the prompt file does not say it")
    critic_max_new_tokens: int = setting(
        0,
        "for an endpoint or a reward model's folder: tokens of a reply; 0: what the folder says, or else 1024",
        "--critic_max_tokens",
        at_least=0,
    )
    critic_temperature: float = setting(
        0.0,
        "for an endpoint: its sampling temperature; for a folder: that of its second and later --critic_votes",
        at_least=0,
    )
    critic_votes: int = setting(
        1, "for a reward model's folder or an endpoint: opinions on each response, whose mean is δ", at_least=1
    )
    critic_expected_verdict: bool = setting(
        False,
        "for a reward model's folder whose feedback begins with a verdict, as in kodcode with Right or Wrong: the "
        "verdict is the mean over both, so it says how sure the model is",
    )
    max_critic_failures: float = setting(
        0.5, "stop when more than this share of a step's critiques failed", at_least=0, at_most=1
    )
    run_tests: bool | None = setting(
        None,
        "run each response's unit tests and show the critic their log; by default where its prompt has a place for it",
    )


@dataclass
class RewardSettings:
    """From quotes to token rewards, and the KL to the reference."""

    scheme: Scheme = setting("uniform", "how a span's reward spreads over its tokens")
    unfinished_reward: float = setting(
        0.0, "added on the last token of a response that the length limit cut off, or to its verdict"
    )
    kl: KLKind = setting("full", "kind of KL per token")
    kl_coef: float = setting(0.2, "β of the KL penalty (its start, where a target is set)", "--beta", at_least=0)
    kl_target: float | None = setting(6.0, "nats per response that β is steered to; 0 keeps β fixed", at_least=0)
    kl_horizon: float = setting(10_000, "rollouts over which β may change by 20 %", above=0)


@dataclass
class PPOSettings:
    """Advantages and the loss."""

    gamma: float = setting(1.0, "discount γ", at_least=0, at_most=1)
    lam: float = setting(0.95, "λ of the advantage estimate", at_least=0, at_most=1)
    value_target: Literal["lambda", "rewards"] = setting(
        "lambda", "what the value head learns: A + V, or the discounted sum of the rewards to come"
    )
    ppo_epochs: int = setting(4, "passes of updates over a step's rollouts", above=0)
    minibatches: int = setting(1, "updates per pass", above=0)
    micro_batch_size: int = setting(
        1, "responses in one forward and backward pass; if it holds all of a step's, a pass of each step is saved"
    )
    clip_range: float = setting(0.2, "ε of PPO's ratio clip", above=0)
    value_clip_range: float | None = setting(
        0.2, "how far a value may move from its rollout's in one step; 0: any", at_least=0
    )
    entropy_coef: float = setting(0.0, "β_H, weight of the entropy bonus", at_least=0)


@dataclass
class OptimiserSettings:
    """The optimiser."""

    optimizer: Literal["auto", "adafactor", "adamw"] = setting(
        "auto", "of the policy; auto: adafactor, as in the paper, or with --deepspeed adamw"
    )
    learning_rate: float = setting(1e-6, "of the policy", "--lr", at_least=0)
    lr_schedule: Literal["linear", "cosine", "constant"] = setting("linear", "of the learning rate, over all updates")
    weight_decay: float = setting(0.0, "of the policy's weights", at_least=0)
    max_grad_norm: float = setting(1.0, "clip the policy's gradient to this norm", above=0)
    value_learning_rate: float = setting(1e-2, "of the value head", at_least=0)
    kl_limit: float | None = setting(
        None, "stop the run when the mean KL of a response exceeds this; 0: never", at_least=0
    )


@dataclass
class OutputSettings:
    """Checkpoints and logs."""

    save_every: int = setting(
        50, "steps between checkpoints (one more is written at the end); 0: only at the end", "--save_steps", at_least=0
    )
    save_total_limit: int = setting(2, "checkpoints to keep", above=0)
    keep_policies: bool | None = setting(
        None,
        "keep the policy of every checkpoint in RUN/policies, to evaluate it; by default adapters, no whole models",
    )
    log_rollouts_every: int = setting(
        10, "rescore the rollouts (new_logprobs) and print one every so many steps; 0: never", at_least=0
    )
    report_to: list[str] = setting(["tensorboard"], "tensorboard, wandb, trackio (several), or none")


@dataclass
class AuditSettings:
    """A trusted critic that is asked as well as the one that rewards, for the log only."""

    audit_critic: str = setting("", "also asked about a share of the rollouts, for the log only; as --critic")
    audit_share: float = setting(0.05, "of the rollouts, which --audit_critic is asked about", above=0, at_most=1)
    audit_prompt: str = setting("", "for an endpoint as --audit_critic: its prompt file")
    audit_flip_limit: float | None = setting(
        None, "stop when the two disagree about the sign of more than this share of tokens in 20 steps; 0: never"
    )
    audit_gap_limit: float | None = setting(
        None, "stop when mean δ of 20 steps is by more than this above --audit_critic's; 0: never"
    )


@dataclass
class PolicyConfig(
    AuditSettings, OutputSettings, OptimiserSettings, PPOSettings, RewardSettings, CriticSettings, SamplingSettings,
    PolicySettings, RunSettings,
):  # fmt: skip
    """Settings of one run. A *step* is one cycle of rollouts, feedback and updates; an *update* one optimiser step.

    ``PolicyConfig.of(algorithm="grpo", outcome="mean", lam=1.0)`` makes one of flags, wherever they belong.
    """

    algorithm: Algorithm = field(default_factory=lambda: algorithm_class("text2grad")())

    def __post_init__(self) -> None:
        for part in self.parts:
            for name, hint in get_type_hints(type(part)).items():  # YAML reads 1e-6 as text, and 0 as an integer
                if hint in (float, float | None) and type(getattr(part, name)) in (str, int):
                    setattr(part, name, float(getattr(part, name)))
        self.dtype = long_dtype_name(self.dtype)
        if self.optimizer == "auto":
            self.optimizer = "adamw" if self.deepspeed else "adafactor"
        go_on_with_adapter(self)
        self.algorithm.configure(self)
        if self.rollouts_ahead is None:
            self.rollouts_ahead = is_endpoint(self.critic) or is_served(self.critic)
        self.method = self.method or self.algorithm.label

    def __setattr__(self, name: str, value: Any) -> None:
        """A setting of the algorithm is set there: ``config.algorithm.outcome``."""
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"PolicyConfig has no field {name!r}; it may be one of its algorithm's")
        super().__setattr__(name, value)

    @property
    def parts(self) -> tuple[Any, ...]:
        """All dataclasses of settings, its own first."""
        return self, self.algorithm

    # Flags

    @classmethod
    def of(cls, **flags: Any) -> PolicyConfig:
        """A config from flags of all its parts.

        Raises:
            InputError: a setting of another algorithm, or of none.
        """
        name = flags.pop("algorithm", None) or "text2grad"
        if name not in ALGORITHMS:
            raise InputError(f"--algorithm {name!r} does not exist; choose one of {', '.join(ALGORITHMS)}")
        chosen = algorithm_class(name)
        own, its = _names_of(cls), _names_of(chosen)
        others = {name: value for name, value in flags.items() if name not in own and value is not None}
        for other in others:
            if other not in its:
                raise InputError(f"--{other} is no setting of --algorithm {name}{_belongs_to(other)}")
        return cls(**{name: value for name, value in flags.items() if name in own}, algorithm=chosen(**others))

    def flat(self) -> dict[str, Any]:
        """All settings by their flags' names, as ``run.json`` has them."""
        flat = {item.name: getattr(part, item.name) for part in self.parts for item in fields(part)}
        return {**flat, "algorithm": self.algorithm.name}

    def changed(self, **flags: Any) -> PolicyConfig:
        """A copy with other settings; another algorithm begins with its own defaults."""
        flat = self.flat()
        if flags.get("algorithm", self.algorithm.name) != self.algorithm.name:
            own = ("method",) if flat["method"] == self.algorithm.label else ()
            for name in (*_names_of(self.algorithm), *own):
                del flat[name]
        return PolicyConfig.of(**{**flat, **flags})

    @classmethod
    def flags(cls, algorithms: Iterable[str] = tuple(ALGORITHMS)) -> type:
        """A flat dataclass of all settings: its fields are the flags. An algorithm's are None unless given."""
        hints = get_type_hints(cls)
        flat: dict[str, tuple[str, Any, Any]] = {}
        for item in fields(cls):
            flat[item.name] = (item.name, hints[item.name], copy(item))
        names = Literal[tuple(ALGORITHMS)]  # type: ignore[valid-type]
        text = "what the feedback does; its own settings are listed by --algorithm NAME --help (default: text2grad)"
        flat["algorithm"] = ("algorithm", names | None, setting(None, text))
        for kind in map(algorithm_class, algorithms):
            hints = get_type_hints(kind)
            for item in fields(kind):
                optional = field(default=None, metadata=item.metadata)
                flat.setdefault(item.name, (item.name, hints[item.name] | None, optional))
        return make_dataclass("Flags", list(flat.values()), namespace={"__doc__": cls.__doc__})

    @classmethod
    def overruled(cls, args: Sequence[str]) -> list[str]:
        """What a file sets of its algorithm gives way to ``--algorithm NAME`` where NAME has no such setting."""
        words = [word for arg in args for word in arg.split("=", 1)]
        chosen = dict(pairwise(words)).get("--algorithm")
        if chosen not in ALGORITHMS:
            return []
        return sorted(_names_of(cls.flags()) - _names_of(cls) - _names_of(algorithm_class(chosen)))

    @classmethod
    def shown_flags(cls, args: Sequence[str]) -> type:
        """What ``--help`` explains: the settings of the algorithm that the command line names, and of no other."""
        return cls.flags([name for name in ALGORITHMS if name in args or f"--algorithm={name}" in args])

    # What follows from settings

    @property
    def words(self) -> str:
        """The file with the words that ask the policy; none for the task's own."""
        return self.policy_prompt or carried_words(self.model)

    @property
    def keeps_policies(self) -> bool:
        return self.lora_r > 0 if self.keep_policies is None else self.keep_policies

    @property
    def micro_batches(self) -> int:
        """Passes forward and back whose gradients one update adds up."""
        return self.algorithm.learnt(self.rollouts_per_device) // (self.minibatches * self.micro_batch_size)

    def check(self) -> None:
        """Raise ``InputError`` for settings that cannot work, before anything is loaded."""
        for part in self.parts:
            check_values(part)
        check_given(self, "model", "data_path", "output_dir")
        if self.max_steps == 0:
            raise InputError("--max_steps 0: give 1 or more, or -1 for as many as --epochs makes")
        known = [url for url in self.vllm_url if url.startswith(("http://", "https://"))]
        if self.generation == "vllm_server" and (not known or known != self.vllm_url):
            raise InputError("--generation vllm_server needs --vllm_url http://HOST:PORT, where the server is")
        if self.algorithm.compares_groups and self.rollouts_per_prompt < 2:
            name = self.algorithm.name
            raise InputError(
                f"--algorithm {name} compares a prompt's responses; set --rollouts_per_prompt to 2 or more"
            )
        self._check_division("--rollouts_per_prompt", self.rollouts_per_prompt)
        self._check_division("--minibatches times --micro_batch_size", self.minibatches * self.micro_batch_size)
        for name in self.report_to:
            if name not in _TRACKERS or not find_spec(_TRACKERS[name]):
                raise InputError(f"--report_to {name}: not installed, or no such tracker; pip install {name}, or none")
        if self.dtype in ("bfloat16", "float16") and not (self.lora_r or self.deepspeed):
            raise InputError(f"--dtype {self.dtype}: full weights train in float32, or with --deepspeed; leave it out")
        self.algorithm.check(self)
        endpoint = is_endpoint(self.critic)
        model = endpoint or Path(self.critic).is_dir()
        if self.critic_votes > 1 and not model:
            raise InputError(f"--critic_votes needs a folder or an endpoint as --critic, not {self.critic}")
        if self.critic_votes > 1 and not self.critic_temperature:
            raise InputError("--critic_votes above 1 needs different opinions: set --critic_temperature, say to 0.7")
        check_used(
            self,
            ("vllm_url", "--generation vllm_server", self.generation == "vllm_server"),
            ("critic_prompt", "an endpoint as --critic", endpoint),
            ("critic_variant", "an endpoint as --critic", endpoint),
            ("critic_max_new_tokens", "a reward model's folder or an endpoint as --critic", model),
            ("critic_expected_verdict", "a reward model's folder as --critic", model and not endpoint),
            ("critic_temperature", "an endpoint as --critic, or --critic_votes", endpoint or self.critic_votes > 1),
            ("audit_prompt", "an endpoint as --audit_critic", is_endpoint(self.audit_critic)),
            ("audit_flip_limit", "--audit_critic, the trusted critic", self.audit_critic),
            ("audit_gap_limit", "--audit_critic, the trusted critic", self.audit_critic),
        )

    def _check_division(self, divisor: str, parts: int) -> None:
        if self.rollouts_per_device % parts:
            raise InputError(
                f"--rollouts_per_device {self.rollouts_per_device} cannot be divided by {divisor} ({parts}); "
                "change one of them"
            )


def _names_of(settings: Any) -> set[str]:
    return {item.name for item in fields(settings)}


def _belongs_to(name: str) -> str:
    owners = [kind for kind in ALGORITHMS if name in _names_of(algorithm_class(kind))]
    return f", but of {', '.join(owners)}; add --algorithm {owners[0]}" if owners else "; --help lists the settings"
