#!/usr/bin/env bash
# Programs of one policy: HumanEval and MBPP by EvalPlus, and held-out KodCode questions by their unit tests. --help lists the flags.
exec python "$(dirname "$0")/../suite.py" --suite kodcode "$@"
