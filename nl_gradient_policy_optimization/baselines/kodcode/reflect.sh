#!/usr/bin/env bash
# bash reflect.sh --data_path ANSWERS.json --output_path REFLECTED.json --model SFT_RUN --critic REWARD_MODEL
exec bash "$(dirname "$0")/../launch.sh" reflect kodcode "$@"
