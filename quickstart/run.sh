#!/usr/bin/env bash
# The whole method, small and real: a base model's answers, their annotation, a reward model, a better policy, a report.
#   bash quickstart/run.sh                    SmolLM2-135M, 64 posts; ends with runs/quickstart/report.html
#   bash quickstart/run.sh --smoke            the same steps in about a minute, with a tiny random model
#   bash quickstart/run.sh --seed 2 --run_dir runs/seed2
#   bash quickstart/run.sh --critic programmatic --run_dir runs/by_rules   # the rules instead of the reward model
#   bash quickstart/run.sh --code             short Python functions, with their unit tests as critic; ends with runs/code/report.html
# Run the same command again to continue an interrupted run. Sets the environment up, and calls quickstart/run.py.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
source env.sh
exec python quickstart/run.py "$@"
