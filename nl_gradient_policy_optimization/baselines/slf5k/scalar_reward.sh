#!/usr/bin/env bash
# bash scalar_reward.sh --data_path PAIRS.json --output_dir RUN
exec bash "$(dirname "$0")/../launch.sh" scalar_reward slf5k "$@"
