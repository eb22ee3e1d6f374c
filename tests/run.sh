#!/usr/bin/env bash
# Lint, format check and the test suite, set-up included.
#   bash tests/run.sh                 everything but the slow proofs
#   bash tests/run.sh --slow          only the slow proofs
#   bash tests/run.sh -k grounding    further arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
bash env.sh
python=${VENV:-.venv}/bin/python
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
"$python" -m ruff check .
"$python" -m ruff format --check .
if [ "${1:-}" = "--slow" ]; then
    shift
    exec "$python" -m pytest -m slow --timeout 7200 -s "$@"
fi
exec "$python" -m pytest -n 2 --dist loadfile "$@"
