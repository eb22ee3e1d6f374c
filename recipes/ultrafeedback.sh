#!/usr/bin/env bash
# UltraFeedback: answers to open questions, from the published data to table 4 of the paper.
#   bash recipes/ultrafeedback.sh            Llama-3.1-8B-Instruct on all GPUs; ends with runs/ultrafeedback/report.html
#   bash recipes/ultrafeedback.sh --smoke    the same steps on two CPU processes with a tiny random model
#   bash recipes/ultrafeedback.sh --print    only say the commands; each can be run alone
#   --annotator CRITIC                       who annotates (openai:gpt-4o)
#   --judge openai:gpt-4-1106-preview        also AlpacaEval 2.0 and MT-Bench; ALPACA and MT_BENCH name their files
#   --model NAME, --run_dir DIR, --seed N    another policy, folder, seed
#   DATA=pairs.json EVALUATION=held_out.json files in place of the hub's sets
# Interrupted? The same command goes on where it was.
set -euo pipefail
task=ultrafeedback first=sft base_model=meta-llama/Llama-3.1-8B-Instruct
data=${DATA:-HuggingFaceH4/ultrafeedback_binarized#train_prefs}
held_out=${EVALUATION:-HuggingFaceH4/ultrafeedback_binarized#test_prefs}
source "$(dirname "$0")/setup.sh"
if $smoke; then data=recipes/sample/ultrafeedback.json held_out=''; fi

# Data: 30 % of the prompts for SFT, 50 % for the reward model, 20 % for the policy.
run python recipes/splits.py --task ultrafeedback --data_path "$data" --evaluation_path "$held_out" --seed "$seed" \
    --output_dir "$run/data" "${splits[@]}"

# The start: the better answers of the first part.
run $baseline sft ultrafeedback --data_path "$run/data/sft.json" --model "$model" --output_dir "$run/sft" --seed "$seed" \
    "${sft[@]}"

# What an annotator says of the published answers, and the reward model.
run python rm_data_anno/ultrafeedback/dual_feedback_annotation_RM.py --max_failures 0.01 --critic "$annotator" \
    --data_path "$run/data/reward_model.json" --output_path "$run/annotated.json"
train_reward_model "$run/annotated.json" reward_model
measure_reward_model

# The data set's own pairs, and the scalar reward model of PPO. There are no steps here, so there is no PRM-PPO.
run $baseline pairs ultrafeedback --data_path "$run/data/reward_model.json" --output_path "$run/pairs.json" "${pairs[@]}"
train_scalar_reward
train_policies "$run/sft"

# ARC-Challenge and the held-out requests; with a judge AlpacaEval 2.0 and MT-Bench.
$smoke && benchmarks=(--only held_out)
[ -z "$judge" ] || benchmarks=(--judge "$judge" --alpaca_path "${ALPACA:-hub}" ${MT_BENCH:+--mt_bench_path "$MT_BENCH"})
evaluate_policies sft text2grad ppo ppo_delta dpo
measure_reflection "$run/sft"

source recipes/report.sh
