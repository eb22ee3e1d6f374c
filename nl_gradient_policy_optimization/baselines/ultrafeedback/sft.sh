#!/usr/bin/env bash
# bash sft.sh --data_path RECORDS.json --output_dir RUN
exec bash "$(dirname "$0")/../launch.sh" sft ultrafeedback "$@"
