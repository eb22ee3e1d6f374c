#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/slf5k/train_slf5k.sh --data_path prompts.json --critic runs/reward_model --output_dir runs/slf5k
# Optimises the policy on slf5k; launch.sh says how GPUs, machines and restarts are chosen. Any setting may follow.
here=$(cd "$(dirname "$0")" && pwd)
[[ " $* " == *" --config"* ]] || set -- --config "$here/config.yaml" "$@"
exec bash "$here/../launch.sh" "$here/train.py" "$@"
