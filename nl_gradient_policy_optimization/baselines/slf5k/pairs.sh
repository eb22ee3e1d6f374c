#!/usr/bin/env bash
# bash pairs.sh --data_path RECORDS.json --output_path PAIRS.json
exec bash "$(dirname "$0")/../launch.sh" pairs slf5k "$@"
