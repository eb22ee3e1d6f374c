#!/usr/bin/env bash
# bash nl_reward_model/ultrafeedback/deepspeed_train_ultrafeedback.sh --data_path annotated.json --output_dir runs/ultrafeedback/reward_model
# Any setting of config.yaml can follow; RANKS, ZERO, HOSTFILE and DS_ACCELERATOR are told in ../deepspeed/train.sh.
exec bash "$(dirname "$0")/../deepspeed/train.sh" ultrafeedback "$@"
