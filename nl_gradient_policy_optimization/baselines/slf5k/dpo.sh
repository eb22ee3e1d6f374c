#!/usr/bin/env bash
# bash dpo.sh --data_path PAIRS.json --model SFT_RUN --output_dir RUN
exec bash "$(dirname "$0")/../launch.sh" dpo slf5k "$@"
