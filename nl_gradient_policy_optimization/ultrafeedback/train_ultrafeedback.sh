#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/ultrafeedback/train_ultrafeedback.sh --data_path prompts.json --critic runs/reward_model --output_dir runs/ultrafeedback
# Optimises the policy on ultrafeedback; launch.sh says how GPUs, machines and restarts are chosen. Any setting may follow.
here=$(cd "$(dirname "$0")" && pwd)
[[ " $* " == *" --config"* ]] || set -- --config "$here/config.yaml" "$@"
exec bash "$here/../launch.sh" "$here/train.py" "$@"
