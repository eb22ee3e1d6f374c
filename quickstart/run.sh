#!/usr/bin/env bash
# The whole method, small and real: a base model's answers, their annotation, a reward model, a better policy, a report.
#   bash quickstart/run.sh                    SmolLM2-135M, 64 posts; ends with runs/quickstart/report.html
#   bash quickstart/run.sh --smoke            the same steps in about a minute, with a tiny random model
#   bash quickstart/run.sh --seed 2 --run_dir runs/seed2
#   bash quickstart/run.sh --critic programmatic --run_dir runs/by_rules   # the rules instead of the reward model
# Interrupted? The same command goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."

smoke=false seed=42 run= critic=reward_model
while [ $# -gt 0 ]; do
    case $1 in
        --smoke) smoke=true ;;
        --seed) seed=${2:?--seed needs a number}; shift ;;
        --critic) critic=${2:?--critic needs reward_model, programmatic, or any critic}; shift ;;
        --run_dir) run=${2:?--run_dir needs a folder}; shift ;;
        *) echo "error: unknown option $1; see the head of quickstart/run.sh" >&2; exit 2 ;;
    esac
    shift
done

# shellcheck disable=SC1091
source env.sh
export TOKENIZERS_PARALLELISM=false DS_ACCELERATOR=${DS_ACCELERATOR:-cpu} PYTHONWARNINGS=ignore::FutureWarning
export TEXT2GRAD_NEXT=0 # this script says what comes next
# shellcheck source=text2grad/journal/launching.sh
. text2grad/journal/launching.sh
# Ten scripts start below. Their libraries are imported once, for all of them.
warm_up nl_gradient_policy_optimization.optimize nl_reward_model.train_rm rouge_score.rouge_scorer matplotlib.pyplot
python() { launch command python "$@"; }  # signals reach it, and it is not left behind
train=quickstart/data/posts_train.json
held_out=quickstart/data/posts_validation.json
if $smoke; then
    run=${run:-runs/smoke} settings=quickstart/smoke limit=8
    model=$run/tiny_model
    [ -d "$model" ] || python quickstart/tiny_model.py "$model"
    learnt=$model
else
    run=${run:-runs/quickstart} settings=quickstart limit=32
    model=smollm2
    learnt=quickstart/reward_model # made by quickstart/reward_model.sh
fi
rules=text2grad.critics.programs.slf5k.critic:WorkedSummaryCritic
mkdir -p "$run"
[ "$critic" = reward_model ] && critic=$run/reward_model
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1/6  The base model answers the posts"
answer() {
    python evaluation/generate.py --config "$settings/answers.yaml" --model "$model" --seed "$seed" "$@"
}
answer --data_path $train --limit $limit --output_path "$run/answers.json"
answer --data_path $held_out --num_samples 1 --output_path "$run/unseen.json"

say "2/6  Each answer gets a critique, and quotes of what is good and poor in it"
annotate() {
    python rm_data_anno/slf5k/dual_feedback_annotation_RM.py --critic "$rules" --data_path "$1" --output_path "$2"
}
annotate "$run/answers.json" "$run/annotated.json"
annotate "$run/unseen.json" "$run/unseen.annotated.json"

say "3/6  A reward model learns to write such feedback, and writes it on posts that nobody trained on"
python nl_reward_model/slf5k/train_rm.py --config "$settings/reward_model.yaml" --model "$learnt" --seed "$seed" \
    --data_path "$run/annotated.json" --output_dir "$run/reward_model"
python nl_reward_model/slf5k/evaluation/2_infer.py --model_path "$run/reward_model" --constrained quotes \
    --dataset_path "$run/unseen.annotated.json" --output_file "$run/judgements.json"
python nl_reward_model/slf5k/evaluation/3_metrics.py --input_file "$run/judgements.json" \
    --output_file "$run/reward_model.metrics.json"

say "4/6  The policy learns from the feedback, token by token"
audit=() # the rules audit a quarter of the answers, for the log alone, unless they are the critic themselves
[ "$critic" = programmatic ] || audit=(--audit_critic programmatic --audit_share 0.25)
python nl_gradient_policy_optimization/slf5k/train.py --config "$settings/policy.yaml" --model "$model" --seed "$seed" \
    --data_path $train --critic "$critic" ${audit[@]+"${audit[@]}"} --output_dir "$run/policy"

say "5/6  Before and after, on posts that nobody trained on"
for system in base text2grad; do
    policy=$model
    [ $system = text2grad ] && policy=$run/policy/policy
    python evaluation/generate.py --config "$settings/held_out.yaml" --model "$policy" \
        --data_path $held_out --output_path "$run/held_out.$system.json"
    python evaluation/slf5k/evaluate.py --data_path "$run/held_out.$system.json" --system $system \
        --critic programmatic --output_path "$run/held_out.$system.result.json"
done

say "6/6  The report"
python evaluation/report.py "$run/policy" --baseline base --output_path "$run/report.html" \
    --annotation "$run/annotated.json.report.json" --reward_model "$run/reward_model.metrics.json" \
    --results "$run/held_out.base.result.json" "$run/held_out.text2grad.result.json"
echo
echo "open $run/report.html in a browser"
