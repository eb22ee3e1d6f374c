#!/usr/bin/env bash
# SLF5K: summaries of Reddit posts, from the published data to table 2 of the paper.
#   bash recipes/slf5k.sh                    Llama-3.1-8B-Instruct on all GPUs; ends with runs/slf5k/report.html
#   bash recipes/slf5k.sh --smoke            the same steps on two CPU processes with a tiny random model
#   bash recipes/slf5k.sh --print            only say the commands; each can be run alone
#   --annotator CRITIC                       who annotates (openai:gpt-4o)
#   --judge openai:gpt-4o                    also win rates, and their curve over the checkpoints
#   --model NAME, --run_dir DIR, --seed N    another policy, folder, seed
#   DATA=train.jsonl EVALUATION=validation.jsonl    files in place of the hub's sets. If the hub has them behind a script:
#                                            hf download JeremyAlain/SLF5K --repo-type dataset --local-dir FOLDER
# Interrupted? The same command goes on where it was.
set -euo pipefail
task=slf5k first=sft base_model=meta-llama/Llama-3.1-8B-Instruct
data=${DATA:-JeremyAlain/SLF5K#train} held_out=${EVALUATION:-JeremyAlain/SLF5K#validation}
source "$(dirname "$0")/setup.sh"
$smoke && data=quickstart/data/posts_train.json held_out=quickstart/data/posts_validation.json

# Data: the paper uses all posts for SFT, reward model and policy, and 500 others for evaluation.
run python recipes/splits.py --task slf5k --data_path "$data" --evaluation_path "$held_out" --seed "$seed" \
    --output_dir "$run/data" "${splits[@]}"

# The start: a policy that writes summaries of the right length.
run $baseline sft slf5k --data_path "$run/data/sft.json" --model "$model" --output_dir "$run/sft" --seed "$seed" "${sft[@]}"

# Its answers, two to a post, and what an annotator says of them.
run python evaluation/generate.py --task slf5k --model "$run/sft" --data_path "$run/data/reward_model.json" \
    --num_samples 2 --temperature 1 --skip_empty true --output_path "$run/answers.json" "${answers[@]}"
run python rm_data_anno/slf5k/dual_feedback_annotation_RM.py --max_failures 0.01 --critic "$annotator" \
    --data_path "$run/answers.json" --output_path "$run/annotated.json"

# The reward model, and the process reward model of PRM-PPO.
train_reward_model "$run/annotated.json" reward_model
measure_reward_model
run $baseline step_labels slf5k --data_path "$run/annotated.json" --output_path "$run/steps.json"
train_reward_model "$run/steps.json" process_reward_model

# Pairs: people's comparisons where the data has them, else by the annotations; and the scalar reward model of PPO.
run $baseline pairs slf5k --data_path "$run/annotated.json" --critic "$annotator" --output_path "$run/pairs.json" "${pairs[@]}"
train_scalar_reward
train_policies "$run/sft"

# Held-out posts.
evaluate_policies sft
benchmarks=(--baseline "$run/evaluation/sft" ${judge:+--judge "$judge"})
evaluate_policies text2grad ppo ppo_delta prm_ppo dpo
measure_reflection "$run/sft"
[ -z "$judge" ] || win_rate_curves

source recipes/report.sh
