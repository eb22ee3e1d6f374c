#!/usr/bin/env bash
# bash ppo.sh --data_path RECORDS.json --reward_model SCALAR_RUN --model SFT_RUN --output_dir RUN
exec bash "$(dirname "$0")/../launch.sh" ppo ultrafeedback "$@"
