#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/ultrafeedback/train_ultrafeedback.sh --data_path prompts.json --critic runs/reward_model --output_dir runs/ultrafeedback
# Optimises the policy on ultrafeedback. Any setting may follow; ../train.sh says what is taken where one is left out.
exec bash "$(dirname "$0")/../train.sh" ultrafeedback "$@"
