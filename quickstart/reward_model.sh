#!/usr/bin/env bash
# Makes quickstart/reward_model, the adapter that step 3 of the quickstart goes on training; hours on a CPU. For the one
# that is there these steps were run one by one: part 1 on an H100, its variations drawn in eight parts, part 2 on a CPU.
#   bash quickstart/reward_model.sh
# Interrupted? The same command goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
source env.sh
export TOKENIZERS_PARALLELISM=false DS_ACCELERATOR=${DS_ACCELERATOR:-cpu} PYTHONWARNINGS=ignore::FutureWarning
run=runs/reward_model posts=quickstart/data/posts_train.json more=quickstart/data/posts_more.json
mkdir -p "$run"

policy() { # CRITIC FOLDER
    python nl_gradient_policy_optimization/slf5k/train.py --config quickstart/policy.yaml --model smollm2 \
        --critic "$1" --critic_constrained quotes --data_path $posts --output_dir "$2"
}
answer() { # POSTS MODEL ANSWERS SEED NAME
    python evaluation/generate.py --task slf5k --data_path "$1" --model "$2" --num_samples "$3" --seed "$4" \
        --temperature 1.0 --max_new_tokens 48 --batch_size 64 --skip_empty true --output_path "$run/$5.json"
}
learn() { # MODEL RECORDS FOLDER SETTING...
    python nl_reward_model/slf5k/train_rm.py --config quickstart/reward_model_long.yaml --model "$1" \
        --data_path "$2" --output_dir "$3" "${@:4}"
}

# Part 1: 32 768 records. Variations of the posts, eight responses to each, some of them answers of the base model and
# of a policy that the rules have trained for 8 and for 16 steps. The rules annotate, and do not say how long a run is.
policy programmatic $run/policy
answer $posts smollm2 12 100 base
answer $posts $run/policy/policies/8 8 108 step8
answer $posts $run/policy/policies/16 8 1016 step16
python rm_data_anno/slf5k/variations.py --data_path $posts --answers $run/base.json $run/step8.json $run/step16.json \
    --rounds 64 --per_post 8 --critique_style facts --output_path $run/varied.json
learn smollm2 $run/varied.json $run/part1

# Part 2: 5 024 records. More posts, answers of a policy that learnt from the model of part 1 and copies what it
# overlooks, and critiques that count the words of a copied run.
policy $run/part1 $run/misled
for at in 8 12 16; do
    answer $posts $run/misled/policies/$at 4 500 misled$at
done
answer $posts smollm2 4 500 base_again
answer $more smollm2 1 11 more_base
answer $more $run/misled/policies/8 2 12 more8
answer $more $run/misled/policies/16 2 13 more16
python rm_data_anno/slf5k/variations.py --data_path $more --answers $run/more_base.json $run/more8.json \
    $run/more16.json --rounds 3 --per_post 8 --seed 500 --output_path $run/varied_more.jsonl
python rm_data_anno/slf5k/variations.py --data_path $posts --answers $run/base_again.json $run/misled8.json \
    $run/misled12.json $run/misled16.json --rounds 1 --per_post 8 --seed 501 --output_path $run/varied_again.jsonl
cat $run/varied_more.jsonl $run/varied_again.jsonl > $run/both.jsonl
learn $run/part1 $run/both.jsonl $run/reward_model --learning_rate 8e-4

# The adapter in bfloat16, half the size, on a base by the name that every machine knows.
cp $run/reward_model/reward_{model.json,prompt.txt} quickstart/reward_model
python - $run/reward_model quickstart/reward_model <<'END'
import sys
from safetensors.torch import load_file, save_file
from text2grad.records import load_json, save_json

made, kept = sys.argv[1:]
about = load_json(f"{made}/adapter_config.json") | {"base_model_name_or_path": "smollm2"}
save_json(f"{kept}/adapter_config.json", about)
weights = {name: value.bfloat16() for name, value in load_file(f"{made}/adapter_model.safetensors").items()}
save_file(weights, f"{kept}/adapter_model.safetensors", metadata={"format": "pt"})
END
