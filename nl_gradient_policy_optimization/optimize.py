"""Set a run up from its settings, train it, and leave its result in ``RUN/policy``.

python nl_gradient_policy_optimization/optimize.py --task my_task.py --model smollm2 --data_path prompts.csv \\
    --critic my_critic.py:judge --output_dir runs/mine
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from peft import get_peft_model
from transformers import PreTrainedTokenizerBase

from nl_gradient_policy_optimization.algorithms import algorithm_class
from nl_gradient_policy_optimization.checkpoints import Checkpoints
from nl_gradient_policy_optimization.config import PolicyConfig
from nl_gradient_policy_optimization.devices import (
    check_fsdp,
    check_sharding,
    check_shared_folder,
    keep_process_group,
    process_group,
)
from nl_gradient_policy_optimization.export import evaluation_command, export
from nl_gradient_policy_optimization.observers.audit import Audit, AuditedRewards
from nl_gradient_policy_optimization.observers.base import Observer
from nl_gradient_policy_optimization.observers.metrics import Metrics
from nl_gradient_policy_optimization.policy import REFERENCE_ADAPTER, PolicyScorer
from nl_gradient_policy_optimization.rewards import CriticRewards, RewardSource
from nl_gradient_policy_optimization.rollouts import METRICS_FILE, ROLLOUTS_FILE, encode_prompt
from nl_gradient_policy_optimization.run_record import continued, describe
from nl_gradient_policy_optimization.trainer import NLGradientTrainer
from nl_gradient_policy_optimization.weights import unsharded, without_dropout
from text2grad.configs import TaskConfig, parse
from text2grad.critics import Critic, check_new_responses, is_served, load_critic
from text2grad.endpoints import is_endpoint
from text2grad.endpoints.reply_cache import ReplyCache
from text2grad.endpoints.spending import joined, load_price
from text2grad.errors import InputError, command
from text2grad.journal.run_folder import RUN_FILE, claimed, first_rank
from text2grad.models import (
    adapting,
    base_model,
    base_of,
    best_dtype,
    check_positions,
    is_adapter,
    load_model,
    load_tokenizer,
    lora_config,
    parameter_count,
    portable_base_name,
)
from text2grad.models.deepspeed_setup import prepare_deepspeed
from text2grad.prompts import asking, variant_asked
from text2grad.records import (
    check_folder,
    check_writable,
    fingerprint,
    is_data_set,
    load_json,
    load_records,
    load_rows,
    save_json,
)
from text2grad.safety.redaction import redacted
from text2grad.tasks import Record, Task, get_task, settings_of_task
from text2grad.tasks.commands import given, own_task, quoted, say_next

SMALL_SETTINGS = Path(__file__).with_name("small.yaml")
SMALL = 1e9
"""Weights below which a model is small: it wants the rates of ``small.yaml``."""
_PAPER_RATE = 1e-6


def optimize(task: str | Task, config: PolicyConfig, rewards: RewardSource | None = None) -> NLGradientTrainer:
    """Train a policy on a task, and export it.

    Args:
        rewards: in place of the critic that the settings name.
    """
    config.check()
    with claimed(config.output_dir, "policy"), ExitStack() as files:
        run = prepare(task, config, rewards, files)
        print_beginning(run)
        run.train()
        export(run)
        run.accelerator.end_training()
    if run.accelerator.is_main_process:
        print_summary(run)
    return run


def prepare(
    task: str | Task, config: PolicyConfig, rewards: RewardSource | None = None, files: ExitStack | None = None
) -> NLGradientTrainer:
    """Everything up to the first step: settings checked, data read, models loaded, ``run.json`` written.

    Args:
        files: closes the files of critics' replies in the end; until then no other run may write them.

    Raises:
        InputError: settings that cannot work, or others than those that the run was begun with.
    """
    own = get_task(task)
    task = asking(own, config.words)
    config.check()
    check_sharding(config.optimizer, config.deepspeed)
    check_fsdp()
    run = Path(config.output_dir)
    for name in (RUN_FILE, METRICS_FILE, ROLLOUTS_FILE):
        check_writable(run / name)
    check_folder(run / "policy")
    records = read_prompts(config, task)
    tokenizer = load_tokenizer(config.model)
    prompts = short_enough(records, task, tokenizer, config)
    accelerator = make_accelerator(config)
    check_shared_folder(run)
    critic = config.critic if rewards is None else rewards.name
    with unsharded():
        rewards = rewards or config.algorithm.source(own, config)  # it reads prompts in the words it was trained with
    if rewards is None:
        rewards = CriticRewards(make_critic(config, task, accelerator, files=files), task, config)
    judge = rewards.critic if isinstance(rewards, CriticRewards) else None
    about = describe(task, config, prompts, critic, judge)
    checkpoints = Checkpoints(run, config.save_total_limit, accelerator)
    begun = (run / METRICS_FILE).is_file() and (run / METRICS_FILE).stat().st_size  # its last line may be cut off
    if (run / RUN_FILE).is_file() and (checkpoints.finished_steps() or begun):
        about = continued(run / RUN_FILE, about, checkpoints.finished_steps(), accelerator.num_processes)
    accelerator.wait_for_everyone()  # all have read run.json before one of them writes it
    rewards = config.algorithm.wrap(rewards, task, config)
    about.setdefault("critic_name", redacted(rewards.name))
    observers: list[Observer] = [Metrics()]
    if config.audit_critic:
        asked = trusted_settings(config)
        trusted = make_critic(asked, task, accelerator, "audit_replies", files)
        clients = [client for each in (judge, trusted) if (client := getattr(each, "client", None))]
        budget = joined([client.budget for client in clients])
        for client in clients:
            client.budget = budget
        theirs = config.algorithm.wrap(CriticRewards(trusted, task, asked), task, asked)
        rewards = AuditedRewards(rewards, theirs, config.audit_share, config.seed)
        observers.append(Audit())
    policy = make_policy(config, accelerator.device)
    prepared = NLGradientTrainer(config, task, policy, tokenizer, prompts, rewards, accelerator, checkpoints, observers)
    if accelerator.is_main_process:
        save_json(run / RUN_FILE, about)
    return prepared


def trusted_settings(config: PolicyConfig) -> PolicyConfig:
    """The run's settings with the trusted critic in the critic's place, and the other way round."""
    scores = Path(config.audit_prompt).stem == "dense"
    return replace(
        config,
        algorithm=algorithm_class("text2grad")(),  # a method may name a critic of its own
        critic=config.audit_critic,
        audit_critic=config.critic,
        critic_prompt=config.audit_prompt,
        critic_variant="",
        critic_constrained="none" if is_endpoint(config.audit_critic) else config.critic_constrained,
        critic_votes=1,
        scheme="uniform" if config.scheme in ("dense", "continuous") and not scores else config.scheme,
        critic_max_new_tokens=0,
        critic_temperature=0.0,
        critic_expected_verdict=False,
        run_tests=None,
    )


def make_critic(
    config: PolicyConfig,
    task: Task,
    accelerator: Accelerator,
    replies: str = "critic_replies",
    files: ExitStack | None = None,
) -> Critic:
    """This rank's critic. An endpoint's replies are kept in the run's folder: a resumed run pays for none twice."""
    options: dict[str, Any] = {}
    if is_endpoint(config.critic):
        options = {
            "prompt": config.critic_prompt or None,
            "variant": variant_asked(config.critic_variant or None, config.critique),
            "temperature": config.critic_temperature,
            "constrained": config.critic_constrained,
            **config.client_options(),
            "cache": ReplyCache(Path(config.output_dir) / f"{replies}-{accelerator.process_index}.jsonl"),
        }
        options |= {"max_tokens": config.critic_max_new_tokens} if config.critic_max_new_tokens else {}
        options |= {"max_cost_usd": None} if costs_nothing(config) else {}
    elif is_served(config.critic):
        options = {"concurrency": config.critic_concurrency, "timeout": config.critic_timeout}
    elif Path(config.critic).is_dir():
        options = {"device": str(accelerator.device), "batch_size": config.critic_batch_size}
        options |= {"constrained": config.critic_constrained, "max_new_tokens": config.critic_max_new_tokens}
        options["expected_verdict"] = config.critic_expected_verdict
        options |= {"temperature": config.critic_temperature} if config.critic_temperature else {}
    with unsharded():  # ZeRO-3 gathers the policy's layers as they are used, and no other model's
        critic = load_critic(config.critic, task, **options)
    if files and (client := getattr(critic, "client", None)):
        files.callback(client.close)
    check_new_responses(critic)
    if getattr(critic, "variant", "") == "dense" and config.scheme not in ("dense", "continuous"):
        raise InputError(f"--scheme {config.scheme} ignores the scores of --critic_variant dense; add --scheme dense")
    return critic


def costs_nothing(config: PolicyConfig) -> bool:
    """Whether the critic is an unlisted server beside a priced endpoint: nobody bills over plain HTTP."""
    specs = config.critic, config.audit_critic
    own, other = (load_price(spec.removeprefix("openai:").rpartition("#")[2]).listed for spec in specs)
    return config.critic.startswith("http://") and not own and is_endpoint(config.audit_critic) and other


def make_accelerator(config: PolicyConfig) -> Accelerator:
    """The accelerator, ready for one process or many, with DeepSpeed where the settings name its file.

    It comes before the model: ZeRO-3 shards weights while they are loaded.
    """
    trackers = [name for name in config.report_to if name != "none"]
    on_cpu = not torch.cuda.is_available()
    plugin = None
    if config.deepspeed:
        from accelerate.utils import DeepSpeedPlugin

        prepare_deepspeed(on_cpu)
        plugin = DeepSpeedPlugin(hf_ds_config=deepspeed_settings(config))
    try:
        accelerator = Accelerator(
            # DeepSpeed on the CPU must be told its backend, and that this is no ordinary CPU run.
            cpu=on_cpu and plugin is None,
            kwargs_handlers=[process_group(config, deepspeed_on_cpu=on_cpu and plugin is not None)],
            deepspeed_plugin=plugin,
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=config.micro_batches, sync_with_dataloader=False
            ),
            log_with=trackers or None,
            project_dir=config.output_dir,
            mixed_precision="no",  # --dtype decides, and no variable of another job's
            dynamo_backend="no",
        )
    except ValueError as error:
        raise InputError(
            f"{error}; unset variables of other jobs (LOCAL_RANK, ACCELERATE_...) or use torchrun"
        ) from None
    keep_process_group()
    accelerator.init_trackers("tracking")
    return accelerator


def deepspeed_settings(config: PolicyConfig) -> dict:
    """The DeepSpeed file, its ``auto`` entries filled from the run's own settings."""
    settings = load_json(config.deepspeed)
    dtype = weights_dtype(config)
    own = [
        (settings, "train_micro_batch_size_per_gpu", config.micro_batch_size),
        (settings, "gradient_accumulation_steps", config.micro_batches),
        (settings, "gradient_clipping", config.max_grad_norm),
        (settings.setdefault("bf16", {}), "enabled", dtype == torch.bfloat16),
        (settings.setdefault("fp16", {}), "enabled", dtype == torch.float16),
    ]
    for section, name, value in own:
        if section.setdefault(name, "auto") not in ("auto", value):
            raise InputError(f"{config.deepspeed}: {name} is {section[name]}, but the run's settings make it {value}")
        section[name] = value
    settings["train_batch_size"] = "auto"
    # An optimiser that DeepSpeed does not know by name (Adafactor) stays as it is when its state is offloaded.
    settings.setdefault("zero_force_ds_cpu_optimizer", False)
    return settings


def weights_dtype(config: PolicyConfig) -> torch.dtype:
    """What the model's weights are loaded in.

    Without DeepSpeed (which keeps float32 copies itself) a model whose every weight is trained is float32: small steps
    vanish in bfloat16.
    """
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    return best_dtype() if config.lora_r or config.deepspeed else torch.float32


def make_policy(config: PolicyConfig, device: torch.device) -> PolicyScorer:
    """The policy with its adapter (or all of its weights) ready to train, and the reference beside it.

    Args:
        device: where a reference of its own goes; the policy is placed by what distributes it.
    """
    set_seed(config.seed)
    reference, dtype = None, weights_dtype(config)
    if is_adapter(config.model):
        model = load_model(config.model, dtype, dropout=config.lora_dropout)
        if getattr(model.peft_config["default"], "bias", "none") != "none":
            raise InputError(
                f"{config.model}: trains the base's biases, too, which leaves no reference; merge it first "
                "(nl_reward_model/merge_lora.py)"
            )
        model.add_adapter(REFERENCE_ADAPTER, model.peft_config["default"])
        own = {tuple(name.split(".")): parameter for name, parameter in model.named_parameters()}
        for parts, parameter in own.items():  # an embedding's adapter has its name last
            if REFERENCE_ADAPTER in parts:
                trained = own[tuple("default" if part == REFERENCE_ADAPTER else part for part in parts)]
                parameter.data.copy_(trained.data)
                parameter.requires_grad_(False)
    elif config.lora_r:
        # DeepSpeed wants all weights in one dtype, and keeps float32 copies of those it trains.
        adapter, recast = lora_config(config), not config.deepspeed
        with adapting():
            model = get_peft_model(load_model(config.model, dtype), adapter, autocast_adapter_dtype=recast)
        model.peft_config["default"].base_model_name_or_path = portable_base_name(config.model)
    else:
        model = load_model(config.model, dtype)
        with unsharded():
            reference = load_model(config.model, dtype, device).requires_grad_(False)
    without_dropout(model)
    for name, weight in model.named_parameters():
        if "vision" in name or "audio" in name:  # reads nothing here, and DDP would wait for its gradient
            weight.requires_grad_(False)
    if config.gradient_checkpointing:
        base = base_model(model)
        base.activation_checkpointing_enable({"use_reentrant": False})
        if hasattr(model, "peft_config"):
            base.enable_input_require_grads()
    return PolicyScorer(model, reference, config.temperature)


def read_prompts(config: PolicyConfig, task: Task) -> dict[str, Record]:
    """Records of a file, or of a data set, of which the run keeps a copy."""
    if not is_data_set(config.data_path):
        return load_records(config.data_path, task, responses=False)
    rows = load_rows(config.data_path)
    copy = Path(config.output_dir) / "prompts.jsonl"  # what is trained on, even if the data set changes
    if copy.is_file() and not config.allow_changed and fingerprint(load_json(copy)) != fingerprint(rows):
        raise InputError(
            f"{config.data_path}: is not the data set that this run was begun with, of which {copy} is a copy; choose "
            "another --output_dir, delete the copy, or add --allow_changed true"
        )
    save_json(copy, rows)
    return load_records(copy, task, responses=False)


def short_enough(
    records: dict[str, Record], task: Task, tokenizer: PreTrainedTokenizerBase, config: PolicyConfig
) -> dict[str, Record]:
    """The records whose prompt fits; the others are named, never cut."""
    lengths = {key: len(encode_prompt(task.prompt(record), task, tokenizer)) for key, record in records.items()}
    kept = {
        key: task.training_prompts(record)
        for key, record in records.items()
        if lengths[key] <= config.max_prompt_tokens
    }
    if not kept:
        raise InputError(
            f"{config.data_path}: every prompt is longer than --max_prompt_tokens {config.max_prompt_tokens} "
            f"(the shortest has {min(lengths.values())}); raise it"
        )
    if len(kept) < len(records) and first_rank():
        left_out = [key for key in records if key not in kept]
        shown = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
        print(f"{len(left_out)} of {len(records)} prompts are longer than --max_prompt_tokens: left out ({shown})")
    longest = max(lengths[key] for key in kept) + config.max_new_tokens
    check_positions(config.model, longest, "lower --max_new_tokens or --max_prompt_tokens")
    return kept


def print_beginning(trainer: NLGradientTrainer) -> None:
    """What the run is about to do, and whether a small model will learn by it."""
    config, ranks, device = trainer.config, trainer.accelerator.num_processes, str(trainer.accelerator.device)
    base = trainer.learner.scorer.base
    trainer.accelerator.print(
        f"{config.algorithm.label}: {len(trainer.collector.ids)} prompts, {trainer.total_steps} steps of "
        f"{config.rollouts_per_device * ranks} responses, on {f'{ranks} × ' if ranks > 1 else ''}{device} in "
        f"{str(base.dtype).removeprefix('torch.')}; critic: {trainer.rewards.name}"
    )
    weights = sum(getattr(each, "ds_numel", each.numel()) for each in base.parameters())  # ZeRO-3 shards them
    if weights < SMALL and config.lora_r and config.learning_rate <= _PAPER_RATE:
        trainer.accelerator.print(
            f"{config.model} has {weights / 1e6:.0f}M weights, and --learning_rate {config.learning_rate:g} is the "
            "paper's for 8B: it will hardly learn. Add --config nl_gradient_policy_optimization/small.yaml"
        )


def print_summary(trainer: NLGradientTrainer) -> None:
    """The last lines of a run: where the result is, and what to do with it."""
    run = trainer.run
    policy = run / "policy"
    kind = f"an adapter of {base_of(trainer.config.model)}" if is_adapter(str(policy)) else "a whole model"
    print(
        f"{run}: finished after step {trainer.finished_steps}. The policy is in {policy} ({kind}), "
        f"the figures of each step are in {run / METRICS_FILE}."
    )
    report = f"python evaluation/report.py {quoted(run, '--output_path', run / 'report.html')}{own_task(trainer.task)}"
    say_next(f"{evaluation_command(trainer.task, policy)}\n      {report}   # curves and samples")


def default_settings() -> tuple[Path | None, str]:
    """The settings where the command line names none, and why; a small model's for a task that brings none itself."""
    own, task, model = settings_of_task("policy_config"), given("--task"), given("--model", "--model_path")
    if model and not given("--config") and (own is None or task == "plain"):
        weights = parameter_count(model)
        if weights < SMALL:
            return SMALL_SETTINGS, f"because {model} has {weights / 1e6:.0f}M weights"
    return own, ""


@command
def main() -> None:
    file, because = default_settings()
    chosen, config = parse(TaskConfig, PolicyConfig, default_config=file, because=because)
    optimize(chosen.task, config)


if __name__ == "__main__":
    main()
