#!/usr/bin/env bash
# Answers of one policy to open questions: held-out requests, ARC-Challenge, AlpacaEval 2.0, MT-Bench. --help lists the flags.
exec python "$(dirname "$0")/../suite.py" --suite ultrafeedback "$@"
