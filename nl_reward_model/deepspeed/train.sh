#!/usr/bin/env bash
# What the tasks' deepspeed_train_<task>.sh share: bash nl_reward_model/deepspeed/train.sh TASK [settings]
# Without --config, it reads and writes runs/TASK: annotated.json and reward_model.
#   RANKS=4        processes on each machine; every GPU by default, one on a CPU
#   ZERO=2         ZeRO stage 2 or 3 (default), both with offload to the CPU's memory
#   HOSTFILE=hosts several machines, in DeepSpeed's format ("worker-1 slots=8", one a line)
#   DS_ACCELERATOR=cpu trains on the CPU
# Where a launcher has already started one process per rank (torchrun, SLURM, Kubernetes: RANK, WORLD_SIZE and
# MASTER_ADDR are set), this script joins as that rank.
set -euo pipefail
task=$1
shift
stage=$(cd "$(dirname "$0")/.." && pwd)
runs=$(dirname "$stage")/runs/$task
if [[ " $* " != *" --config"* ]]; then
    set -- --data_path "$runs/annotated.json" --output_dir "$runs/reward_model" "$@"
fi
case ${ZERO:-3} in 2 | 3) ;; *) echo "error: ZERO=$ZERO: choose 2 or 3" >&2; exit 2 ;; esac
settings=("$stage/$task/train_rm.py" --deepspeed "$stage/deepspeed/zero${ZERO:-3}.json" "$@")
if [ -n "${RANK:-}" ] && [ -n "${WORLD_SIZE:-}" ]; then
    export LOCAL_RANK=${LOCAL_RANK:-${SLURM_LOCALID:-0}} MASTER_PORT=${MASTER_PORT:-29500} # DeepSpeed wants all five
    exec python "${settings[@]}"
fi
if [ "${DS_ACCELERATOR:-}" = cpu ]; then
    RANKS=${RANKS:-1}
elif [ -n "${RANKS:-}" ] && [[ ${CUDA_VISIBLE_DEVICES:-} =~ ^[0-9,]+$ ]] && [ -z "${HOSTFILE:-}" ]; then
    CUDA_VISIBLE_DEVICES=$(cut -d, -f1-"$RANKS" <<< "$CUDA_VISIBLE_DEVICES") # forgotten by DeepSpeed beside --num_gpus
    unset RANKS
fi
# shellcheck source=text2grad/journal/launching.sh
. "$stage/../text2grad/journal/launching.sh"
launch deepspeed --no_local_rank --master_port "${MASTER_PORT:-29500}" \
    ${HOSTFILE:+--hostfile "$HOSTFILE"} ${RANKS:+--num_gpus "$RANKS"} "${settings[@]}"
