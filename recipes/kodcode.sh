#!/usr/bin/env bash
# KodCode: Python functions with unit tests, from the published data to table 3 of the paper.
#   bash recipes/kodcode.sh                  Llama-3.1-8B-Instruct on all GPUs; ends with runs/kodcode/report.html
#   bash recipes/kodcode.sh --small          a coder of 0.5B weights on one GPU, by campaign.py, which takes further flags
#   bash recipes/kodcode.sh --smoke          the same steps on two CPU processes with a tiny random model
#   bash recipes/kodcode.sh --print          only say the commands; each can be run alone
#   --annotator CRITIC                       who annotates (openai:gpt-4o)
#   --judge openai:gpt-4o                    also the win-rate curve over the checkpoints
#   --model NAME, --run_dir DIR, --seed N    another policy, folder, seed
#   DATA=solutions.json PROMPTS=prompts.json files in place of the hub's sets
# Interrupted? The same command goes on where it was.
set -euo pipefail
task=kodcode first=base base_model=meta-llama/Llama-3.1-8B-Instruct
data=${DATA:-KodCode/KodCode-V1-SFT-4o} prompts=${PROMPTS:-KodCode/KodCode-Light-RL-10K}
if [ "${1:-}" = --small ]; then
    cd "$(dirname "$0")/.."
    # shellcheck disable=SC1091
    source env.sh
    export TOKENIZERS_PARALLELISM=false TEXT2GRAD_NEXT=0
    exec python recipes/campaign.py --config recipes/kodcode_small.yaml --data_path "$data" --output_dir runs/kodcode-small \
        "${@:2}"
fi
source "$(dirname "$0")/setup.sh"
draw=(--easy_samples 4000 --medium_samples 4000 --hard_samples 4000 --train_samples 8000 --target_total_size 11800)
policy_prompts=(--policy_path "$prompts")
if $smoke; then data=recipes/sample/kodcode.json draw=() policy_prompts=(--shares 0.3 0.4 0.3); fi

# Data: completions whose tests were run, half of them failing; a fifth for SFT, 9000 for the reward model, 500 for
# evaluation. The policy's questions are a set of their own.
run python rm_data_anno/kodcode/test_case.py --max_failures 0.01 --data_path "$data" --output_path "$run/tested.json" \
    --seed "$seed" "${draw[@]}"
run python recipes/splits.py --task kodcode --data_path "$run/tested.json" "${policy_prompts[@]}" --seed "$seed" \
    --output_dir "$run/data" "${splits[@]}"

# What an annotator says of the reward model's part; SFT is a baseline here, not the start.
run python rm_data_anno/kodcode/dual_feedback_annotation_RM.py --max_failures 0.01 --critic "$annotator" \
    --data_path "$run/data/reward_model.json" --output_path "$run/annotated.json"
run $baseline sft kodcode --data_path "$run/data/sft.json" --model "$model" --output_dir "$run/sft" --seed "$seed" "${sft[@]}"

# The reward model, and the process reward model of PRM-PPO.
train_reward_model "$run/annotated.json" reward_model
measure_reward_model
run $baseline step_labels kodcode --data_path "$run/annotated.json" --output_path "$run/steps.json"
train_reward_model "$run/steps.json" process_reward_model

# Pairs of passing and failing programs, and the scalar reward model of PPO.
run $baseline pairs kodcode --data_path "$run/data/reward_model.json" --output_path "$run/pairs.json" "${pairs[@]}"
train_scalar_reward
train_policies "$model"

# HumanEval, MBPP and the held-out questions.
benchmarks=(--benchmarks "humaneval mbpp")
$smoke && benchmarks=(--only kodcode)
evaluate_policies base sft text2grad ppo ppo_delta prm_ppo dpo
measure_reflection "$model"
[ -z "$judge" ] || win_rate_curves

source recipes/report.sh
