#!/usr/bin/env bash
# bash ppo_delta.sh --data_path RECORDS.json --critic REWARD_MODEL --model SFT_RUN --output_dir RUN   (--reward_placement last_mean for the mean)
exec bash "$(dirname "$0")/../launch.sh" ppo ultrafeedback --reward_placement last_sum "$@"
