#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/baselines/run.sh METHOD TASK [flags]
#   METHOD  sft, pairs, dpo, scalar_reward, ppo, ppo_delta, prm_ppo, capo, sdpo, rltf_fm,
#           rltf_sd, critique_grpo, reflect or step_labels
#   TASK    slf5k, kodcode, ultrafeedback, plain, or your own: my_task.py
# The method's script with the task's settings. ../launch.sh starts what trains, as it starts Text2Grad: its head says how
# GPUs, machines and restarts are chosen (PROCESSES=2 asks for so many processes). The settings are those of
# TASK/METHOD.yaml; PPO and what follows share Text2Grad's own, ../TASK/config.yaml.
# Flags win over both; `run.sh METHOD TASK --help` lists them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# < 2)); then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
method=$1 task=$2
shift 2
case $method in
  ppo_delta) method=ppo && set -- --reward_placement last_sum "$@" ;;
  sdpo) method=../optimize && set -- --method sdpo --teacher all --teacher_weights average --teacher_alpha 0.5 "$@" ;;
  rltf_sd | critique_grpo) set -- --learn "$method" --rollouts_per_prompt 2 "$@" && method=second_attempt ;;
  rltf_fm) method=../optimize && set -- --method rltf_fm --critique_coef 0.1 "$@" ;;
  sft | pairs | dpo | scalar_reward | ppo | prm_ppo | capo | reflect | step_labels) ;;
  *) sed -n '2,5s/^# //p' "$0" >&2 && exit 2 ;;
esac
config=$here/$task/$method.yaml
[[ $method =~ ^(ppo|prm_ppo|capo|second_attempt|../optimize)$ ]] && config=$here/../$task/config.yaml
[[ ! -f $config || " $* " == *" --config"* ]] || set -- --config "$config" "$@"
case $method in
  pairs | reflect | step_labels)
    # shellcheck source=text2grad/journal/launching.sh
    . "$here/../../text2grad/journal/launching.sh"
    launch python "$here/$method.py" --task "$task" "$@"
    exit
    ;;
esac
exec bash "$here/../launch.sh" "$here/$method.py" --task "$task" "$@"
