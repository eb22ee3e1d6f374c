"""What stage 3 says of settings that other trainers have: what they are called here, or why there are none."""

_OTHER_DISTRIBUTION = "would sample from another distribution than the one that is optimised; use --temperature"
_NOT_QUANTISED = "is no setting: an adapter trains on 16-bit weights; 8B takes 17.8 GiB on paper"
_KEPT = "is no setting: evaluation/ measures the policies that a run keeps in RUN/policies"
_NAMES = {
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
    "--algorithm": "loss_type scale_rewards importance_sampling_level advantage",
    "--dtype float16": "fp16",
    "--dtype bfloat16": "bf16",
    "--lr_schedule": "lr_scheduler_type",
    "--generation vllm_server with --vllm_url": "use_vllm vllm_mode vllm_server_host vllm_server_base_url",
    "--log_rollouts_every": "log_completions num_completions_to_print",
    "--save_every": "save_strategy",
    "--method": "run_name",
    "--critic_votes": "votes",
}
OTHER_NAMES = {
    **{name: f"is {ours} here" for ours, names in _NAMES.items() for name in names.split()},
    **dict.fromkeys(("top_p", "min_p", "top_k", "repetition_penalty"), _OTHER_DISTRIBUTION),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), _NOT_QUANTISED),
    **dict.fromkeys(("eval_strategy", "eval_steps"), _KEPT),
    "vllm_gpu_memory_utilization": "belongs to the command that starts the vLLM server (serve_vllm.sh)",
    **dict.fromkeys(("warmup_steps", "warmup_ratio"), "is no setting: updates begin at the full --learning_rate"),
    "merge": "is no setting; nl_reward_model/merge_lora.py --model RUN/policy folds the adapter into its base",
    "push_to_hub": "is no setting; `hf upload OWNER/NAME RUN/policy` uploads the result with its card",
    "logging_steps": "is 1 in every run; leave it out",
    "overwrite_output_dir": "is no setting: a run goes on in its folder; choose another --output_dir",
    "resume_from_checkpoint": "is no setting: the same command goes on from the newest checkpoint",
    "trust_remote_code": "is no setting: code that a model brings is never run",
    "fsdp": "is no setting: DDP by default, or --deepspeed FILE",
}
"""A name -> what to write in its place."""
