#!/usr/bin/env bash
# bash launch.sh BASELINE TASK [flags]: baselines/BASELINE.py with the task's config, on all GPUs (or PROCESSES of them).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
baseline=$1 task=$2
shift 2
config=$here/$task/$baseline.yaml
[[ -f $config ]] || config=$here/../$task/config.yaml # PPO and PRM-PPO share Text2Grad's own settings
[[ " $* " == *" --config"* ]] || set -- --config "$config" "$@"
processes=${PROCESSES:-$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU' || true)}
run=(python)
if [[ $baseline != pairs && $baseline != reflect ]] && ((processes > 1)); then
  run=(torchrun --nproc_per_node "$processes")
fi
exec "${run[@]}" "$here/$baseline.py" --task "$task" "$@"
