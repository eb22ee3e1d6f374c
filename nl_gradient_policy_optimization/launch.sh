#!/usr/bin/env bash
# launch.sh SCRIPT [settings]: a training script on all GPUs of this machine, on one, or on the CPU. Text2Grad and every
# baseline start here. Several processes each hold the whole model (DDP); --deepspeed FILE shards it.
#   PROCESSES=2       so many processes on this machine (default: one per GPU, or one on the CPU)
#   NODES=4 NODE_RANK=0 MASTER_ADDR=host MASTER_PORT=29500    the same line on each of several machines
#   MAX_RESTARTS=3    a run that crashed goes on from its newest checkpoint, so often; not after bad input or a broken update
# SIGTERM, SIGUSR1 and Ctrl-C go to every process: the run writes a checkpoint and ends with 128 + the signal's number.
set -uo pipefail
# shellcheck source=text2grad/journal/launching.sh
. "$(dirname "$0")/../text2grad/journal/launching.sh"
nodes=${NODES:-1}
processes=${PROCESSES:-$(python -c 'import torch; print(torch.cuda.device_count() or 1)')} || {
    echo "error: run \`source env.sh\` first" >&2
    exit 2
}
command=(python)
if [ "$((processes * nodes))" -gt 1 ] || [[ " $* " == *" --deepspeed"* ]]; then
    command=(torchrun --standalone --nproc_per_node "$processes")
    if [ "$nodes" -gt 1 ]; then
        command=(
            torchrun --nproc_per_node "$processes" --nnodes "$nodes" --node_rank "${NODE_RANK:?which machine, from 0}"
            --master_addr "${MASTER_ADDR:?the host of machine 0}" --master_port "${MASTER_PORT:-29500}"
        )
    fi
fi
TEXT2GRAD_EXIT_CODE=$(mktemp)
export TEXT2GRAD_EXIT_CODE
trap 'rm -f "$TEXT2GRAD_EXIT_CODE"' EXIT
for ((attempt = 0; ; attempt++)); do
    : > "$TEXT2GRAD_EXIT_CODE"
    launch "${command[@]}" "$@"
    code=$?
    if [ "$code" -eq 1 ]; then # torchrun's, whatever its processes ended with; one that crashed has left no line
        if ended=$(grep -vxm1 143 "$TEXT2GRAD_EXIT_CODE"); then
            code=$ended
        elif [ "$(wc -l < "$TEXT2GRAD_EXIT_CODE")" -ge "$processes" ]; then
            code=143 # of all; torchrun sends SIGTERM, too, to the others of one that crashed
        fi
    fi
    case $code in 0 | 2 | 129 | 130 | 138 | 143) exit "$code" ;; esac
    if [ "$attempt" -ge "${MAX_RESTARTS:-3}" ]; then
        echo "the run failed ($code) after $attempt restarts" >&2
        exit "$code"
    fi
    echo "the run failed ($code); going on from its newest checkpoint (restart $((attempt + 1)))" >&2
    sleep "${RESTART_DELAY:-10}"
done
