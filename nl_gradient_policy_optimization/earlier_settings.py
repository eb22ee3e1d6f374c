"""What stage 3 says of settings that it does not have: those of its earlier versions, and of other trainers."""

_OTHER_DISTRIBUTION = "would sample from another distribution than the one that is optimised; use --temperature"
_NO_LENGTH = "is no setting any more: with --algorithm verdict, what a short answer leaves out counts"
_NO_REFRESH = (
    "is no setting any more: have the trusted critic annotate the run's rollouts (rm_data_anno/rollouts.py), train the "
    "reward model on them too, and go on with it as --critic and --allow_changed true (docs/audit.md)"
)
_NOT_QUANTISED = "is no setting: an adapter trains on 16-bit weights; 8B takes 17.8 GiB on paper"
_ENGINE = "is no setting: it belongs to the command that starts the vLLM server (serve_vllm.sh)"
_TRL_NAMES = {
    "--model": "sft_model_path",
    "--critic": "reward_funcs",
    "--reward_model": "reward_model_path reward_model_name_or_path",
    "--micro_batch_size": "per_device_train_batch_size",
    "--rollouts_per_device divided by --micro_batch_size": "gradient_accumulation_steps",
    "--rollouts_per_prompt": "num_generations",
    "--max_prompt_tokens": "max_prompt_length",
    "--max_new_tokens": "response_length",
    "--max_steps or --epochs": "total_episodes",
    "--ppo_epochs": "num_iterations num_ppo_epochs",
    "--minibatches": "num_mini_batches",
    "--clip_range": "epsilon epsilon_high cliprange",
    "--value_clip_range": "cliprange_value",
    "--value_coef": "vf_coef",
    "--unfinished_reward": "missing_eos_penalty mask_truncated_completions",
    "--algorithm": "loss_type scale_rewards importance_sampling_level",
    "--dtype float16": "fp16",
    "--dtype bfloat16": "bf16",
    "--lr_schedule": "lr_scheduler_type",
    "--warmup_ratio": "warmup_steps",
    "--generation vllm_server with --vllm_url": "use_vllm vllm_mode vllm_server_host vllm_server_base_url",
    "--log_rollouts_every": "log_completions num_completions_to_print",
    "--save_every": "save_strategy",
    "--method": "run_name",
}
REMOVED = {
    **{name: (None, f"is {ours} here") for ours, names in _TRL_NAMES.items() for name in names.split()},
    "refresh_every": (0, _NO_REFRESH),
    "refresh_records": (16, _NO_REFRESH),
    "refresh_updates": (8, _NO_REFRESH),
    "refresh_batch_size": (16, _NO_REFRESH),
    "refresh_learning_rate": (1e-4, _NO_REFRESH),
    "refresh_data": ("", _NO_REFRESH),
    "top_p": (1.0, _OTHER_DISTRIBUTION),
    "min_p": (None, _OTHER_DISTRIBUTION),
    "top_k": (0, _OTHER_DISTRIBUTION),
    "repetition_penalty": (1.0, f"{_OTHER_DISTRIBUTION}, or a critic that blames repetition"),
    "repeat_ngram": (0, "is no setting any more; let a critic of your own quote what repeats (--critic FILE.py:NAME)"),
    "repeat_reward": (-1.0, "is no setting any more; let a critic of your own quote what repeats"),
    "advantage": ("gae", "is no setting any more: --algorithm verdict or grpo compares a prompt's responses"),
    "min_response_tokens": (0, _NO_LENGTH),
    "short_reward": (-1.0, _NO_LENGTH),
    "outcome_coef": (0.0, "is no setting any more: the outcome is the verdict of --algorithm verdict"),
    "empty_reward": (-1.0, "is −1 in every run; leave it out"),
    "head_chunk": (0, "is fitted to the vocabulary; leave it out"),
    "sampler_limit": (0.2, "is 0.2 nats in every run; leave it out"),
    "whiten_advantages": (True, "is the algorithm's to say; leave it out"),
    "value_max_grad_norm": (1.0, "is 1 in every run; leave it out"),
    "update_kl_limit": (None, "is no setting any more; lower --ppo_epochs or --learning_rate"),
    "patience": (0, "is no setting any more; watch delta/mean in metrics.jsonl, and stop the run with Ctrl-C"),
    "critic_min_probability": (0.0, "is no setting any more; --critic_votes weighs what a reward model is unsure of"),
    "teacher_unit": ("span", "is no setting any more: the gate judges whole spans"),
    "teacher_steps": (0, "is no setting any more: --teacher_coef stays as it is"),
    "load_in_4bit": (False, _NOT_QUANTISED),
    "load_in_8bit": (False, _NOT_QUANTISED),
    "stop_grad_norm": (1e4, "is 10 000 in every run; leave it out"),
    "push_to_hub": ("", "is no setting any more; `hf upload OWNER/NAME RUN/policy` uploads the result with its card"),
    "vllm_gpu_memory": (0.3, _ENGINE),
    "vllm_gpu_memory_utilization": (None, _ENGINE),
    "logging_steps": (None, "is 1 in every run; leave it out"),
    "overwrite_output_dir": (None, "is no setting: a run goes on in its folder; choose another --output_dir"),
    "resume_from_checkpoint": (None, "is no setting: the same command goes on from the newest checkpoint"),
    "trust_remote_code": (None, "is no setting: code that a model brings is never run"),
    "fsdp": (None, "is no setting: DDP by default, or --deepspeed FILE"),
    "eval_strategy": (None, "is no setting: evaluation/ measures the policies that a run keeps in RUN/policies"),
    "eval_steps": (None, "is no setting: evaluation/ measures the policies that a run keeps in RUN/policies"),
}
"""Settings of earlier versions or other trainers: the value at which they changed nothing, what to write instead."""
