#!/usr/bin/env bash
# Summaries of one policy: all metrics of slf5k/evaluate.py, and a judge. --help lists the flags.
exec python "$(dirname "$0")/../suite.py" --suite slf5k "$@"
