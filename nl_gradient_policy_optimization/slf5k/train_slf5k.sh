#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/slf5k/train_slf5k.sh --data_path prompts.json --critic runs/reward_model --output_dir runs/slf5k
# Optimises the policy on slf5k. Any setting may follow; ../train.sh says what is taken where one is left out.
exec bash "$(dirname "$0")/../train.sh" slf5k "$@"
