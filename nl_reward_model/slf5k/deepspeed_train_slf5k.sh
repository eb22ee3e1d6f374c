#!/usr/bin/env bash
# bash nl_reward_model/slf5k/deepspeed_train_slf5k.sh --data_path annotated.json --output_dir runs/slf5k/reward_model
# Any setting of config.yaml can follow; RANKS, ZERO, HOSTFILE and DS_ACCELERATOR are told in ../deepspeed/train.sh.
exec bash "$(dirname "$0")/../deepspeed/train.sh" slf5k "$@"
