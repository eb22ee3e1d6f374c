#!/usr/bin/env bash
# bash prm_ppo.sh --data_path RECORDS.json --critic REWARD_MODEL --model SFT_RUN --output_dir RUN
exec bash "$(dirname "$0")/../launch.sh" prm_ppo kodcode "$@"
