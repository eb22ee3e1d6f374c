#!/usr/bin/env bash
# bash rm_data_anno/ultrafeedback/annotate_ultrafeedback.sh --data_path answers.json [--output_path annotated.json] [--critic programmatic]
# Annotates a file with GPT-4o (set OPENAI_API_KEY), or with the critic that --critic names.
exec python "$(dirname "$0")/dual_feedback_annotation_RM.py" "$@"
