#!/usr/bin/env bash
# Makes quickstart/reward_model, the adapter that step 3 of the quickstart goes on training; hours on a CPU. For the one
# that is there these steps were run one by one, its variations drawn in eight parts, its training on an H100.
#   bash quickstart/reward_model.sh
# Interrupted? The same command goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
source env.sh
export TOKENIZERS_PARALLELISM=false DS_ACCELERATOR=${DS_ACCELERATOR:-cpu} PYTHONWARNINGS=ignore::FutureWarning
run=runs/reward_model posts=quickstart/data/posts_train.json
mkdir -p "$run"

# Answers of the base model, and of a policy that the rules have trained for 8 and for 16 steps
python nl_gradient_policy_optimization/slf5k/train.py --config quickstart/policy.yaml --model smollm2 \
    --critic programmatic --data_path $posts --output_dir $run/policy
answer() {
    python evaluation/generate.py --task slf5k --data_path $posts --model "$1" --num_samples "$2" --seed "$3" \
        --temperature 1.0 --max_new_tokens 48 --batch_size 64 --skip_empty true --output_path "$run/$4.json"
}
answer smollm2 12 100 base
answer $run/policy/policies/8 8 108 step8
answer $run/policy/policies/16 8 1016 step16

# Variations of the posts, eight responses to each, annotated by the rules: 32 768 records
python rm_data_anno/slf5k/variations.py --data_path $posts --answers $run/base.json $run/step8.json $run/step16.json \
    --rounds 64 --per_post 8 --output_path $run/varied.json

python nl_reward_model/slf5k/train_rm.py --config quickstart/reward_model_long.yaml --model smollm2 \
    --data_path $run/varied.json --output_dir $run/reward_model
python quickstart/ship.py $run/reward_model quickstart/reward_model
