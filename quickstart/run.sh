#!/usr/bin/env bash
# The whole method, small and real: a base model's answers, their annotation, a reward model, a better policy, a report.
# Sets the environment up, and calls quickstart/run.py; its head, or `bash quickstart/run.sh --help`, lists the flags.
set -euo pipefail
root=$(dirname "$0")/..
# shellcheck disable=SC1091
source "$root/env.sh"
exec python "$root/quickstart/run.py" "$@"
