#!/usr/bin/env bash
# Lint, format check, type check and the test suite, set-up included.
#   bash tests/run.sh                 everything but the slow proofs
#   bash tests/run.sh --fast          the checks, and the tests of pure functions: under a minute
#   bash tests/run.sh --slow          lint, and only the slow proofs
#   bash tests/run.sh -k grounding    further arguments go to pytest
#   bash tests/run.sh --integrations [NAME ...]    the libraries that we work with, each installed for real (docs/integrations.md)
set -euo pipefail
cd "$(dirname "$0")/.."
bash env.sh
python=${VENV:-.venv}/bin/python
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
# This checkout's code, also where two checkouts share one environment.
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ "${1:-}" = --integrations ]; then
    exec "$python" tests/integrations.py "${@:2}"
fi
"$python" -m ruff check .
"$python" -m ruff format --check .
case "${1:-}" in
    --slow)
        shift
        exec "$python" -m pytest -m slow --timeout 7200 -s "$@"
        ;;
    --fast)
        shift
        # Only these files: collecting all the others takes longer than the tests.
        mapfile -t selection < <(grep -rl --include='test_*.py' 'pytestmark = pytest.mark.fast' tests)
        selection+=(-q -m "fast and not slow")
        ;;
    *) selection=() ;;
esac
# Types are checked beside the tests, and told of last.
types=$(mktemp) code=0
"$python" -m mypy >"$types" 2>&1 &
trap "kill $! 2>/dev/null || true; rm $types" EXIT
trap 'exit 130' INT # Ctrl-C waits for no types
"$python" -m pytest -n 2 --dist loadfile "${selection[@]}" "$@" || code=$?
wait $! || code=$?
cat "$types"
exit "$code"
