#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/baselines/run.sh METHOD TASK [flags]
#   METHOD  sft, pairs, dpo, scalar_reward, reflect, step_labels; or a policy's algorithm: verdict, teacher, verdict_teacher,
#           grpo, dr_grpo, rtt, papo, pure, prime, ppo, ppo_delta, prm_ppo, capo, sdpo, rltf_sd, critique_grpo
#   TASK    slf5k, kodcode, ultrafeedback, plain, or your own: my_task.py
# The method's script with the task's settings. ../launch.sh starts what trains, as it starts Text2Grad: its head says how
# GPUs, machines and restarts are chosen (PROCESSES=2 asks for so many processes). The settings are those of
# TASK/METHOD.yaml; algorithms share Text2Grad's own, ../TASK/config.yaml.
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
  ppo)
    case " $* " in
      *" --reward_model"* | *" --reward_placement"* | *" --config"* | *" --help"* | *" -h "*) ;;
      *) echo "error: ppo needs --reward_model FOLDER, a scalar reward model; ppo_delta learns from the sum of δ" >&2 && exit 2 ;;
    esac
    method=../optimize && set -- --algorithm scalar "$@"
    ;;
  ppo_delta) method=../optimize && set -- --algorithm scalar --reward_placement last_sum "$@" ;;
  prm_ppo) method=../optimize && set -- --algorithm steps "$@" ;;
  rltf_sd | critique_grpo) set -- --algorithm second --learn "$method" --rollouts_per_prompt 2 "$@" && method=../optimize ;;
  verdict | teacher | verdict_teacher | grpo | dr_grpo | rtt | papo | pure | prime | capo | sdpo) set -- --algorithm "$method" "$@" && method=../optimize ;;
  sft | pairs | dpo | scalar_reward | reflect | step_labels) ;;
  *) sed -n '2,5s/^# //p' "$0" >&2 && exit 2 ;;
esac
config=$here/$task/$method.yaml
[[ $method != ../optimize ]] || config=$here/../$task/config.yaml
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
