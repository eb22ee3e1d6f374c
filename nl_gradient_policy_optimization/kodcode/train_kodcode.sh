#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/kodcode/train_kodcode.sh --data_path prompts.json --critic runs/reward_model --output_dir runs/kodcode
# Optimises the policy on kodcode. Any setting may follow; ../train.sh says what is taken where one is left out.
exec bash "$(dirname "$0")/../train.sh" kodcode "$@"
