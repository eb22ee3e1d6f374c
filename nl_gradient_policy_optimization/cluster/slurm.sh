#!/usr/bin/env bash
# sbatch nl_gradient_policy_optimization/cluster/slurm.sh slf5k --data_path posts.json --critic runs/reward_model --output_dir runs/slf5k
# A policy run on several machines under Slurm; submit it from the repository's root, on a file system that all share.
# After a requeue, or sent again with the same arguments, the run goes on from its newest checkpoint.
#SBATCH --job-name=text2grad
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=text2grad-%j.log
set -euo pipefail
task=${1:?slf5k, kodcode or ultrafeedback}
shift
# shellcheck disable=SC1091
source env.sh
NODES=$SLURM_NNODES
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${hosts%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) # two jobs on one machine need two ports
export NODES MASTER_ADDR MASTER_PORT
# One launcher on each machine; it starts a process per GPU. srun itself does not take over the job's CPUs per task.
# shellcheck disable=SC2016
srun ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} bash -c 'NODE_RANK=$SLURM_NODEID exec bash "$@"' bash \
    "nl_gradient_policy_optimization/$task/train_$task.sh" "$@"
