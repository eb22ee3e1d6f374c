#!/usr/bin/env bash
# What the tasks' train_<task>.sh share: bash nl_gradient_policy_optimization/train.sh TASK [settings]
# Without --config, the task's config.yaml, and what the stages before left in runs/TASK: the prompts (data/policy.json of
# recipes/splits.py, else annotated.json) and the reward_model. launch.sh says how GPUs, machines and restarts are chosen.
set -euo pipefail
task=$1
shift
stage=$(cd "$(dirname "$0")" && pwd)
runs=$(dirname "$stage")/runs/$task
if [[ " $* " != *" --config"* ]]; then
    data=$runs/data/policy.json
    [ -f "$data" ] || data=$runs/annotated.json
    set -- --config "$stage/$task/config.yaml" --data_path "$data" --critic "$runs/reward_model" \
        --output_dir "$runs/text2grad" "$@"
fi
exec bash "$stage/launch.sh" "$stage/$task/train.py" "$@"
