#!/usr/bin/env bash
# Win rate over training (paper, figure 6): the policy of every checkpoint of a run against one baseline's answers, by one
# judge. Adapters are kept from every checkpoint, in RUN/policies; --save_every of training says how many there are.
#   bash evaluation/win_rate_curve.sh --run runs/text2grad --task slf5k --data_path posts.json \
#       --baseline base.answers.json --baseline_system base --judge openai:gpt-4o --system text2grad --output_dir runs/curve
# Each gives output_dir/N.answers.json and output_dir/N.result.json (with "step": N). Of whole models only the newest
# checkpoints are left: train with --keep_policies true for more points.
# Further flags: --limit N, --batch_size N, --max_new_tokens N, --max_cost_usd USD (for each checkpoint)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=text2grad/journal/launching.sh
. "$here/../text2grad/journal/launching.sh"
python() { launch command python "$@"; }  # signals reach it, and it is not left behind
for flag in --run --task --data_path --baseline --baseline_system --judge --system --output_dir; do
    [[ " $* " == *" $flag "* ]] || { echo "error: $flag is needed; see the head of $0" >&2; exit 2; }
done
answer=() judge=()
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --run) run=$2 ;;
        --task) task=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        --data_path|--limit|--batch_size|--max_new_tokens) answer+=("$1" "$2") ;;
        --judge|--baseline|--baseline_system|--max_cost_usd) judge+=("$1" "$2") ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
steps=$({ find "$run" "$run/policies" -maxdepth 1 -type d 2>/dev/null || true; } \
    | sed -nE 's#.*/(checkpoint-|policies/)([0-9]+)$#\2#p' | sort -nu)
[ -n "$steps" ] || { echo "error: $run holds no checkpoint-N and no policies/N; give a training run's folder" >&2; exit 2; }
for step in $steps; do
    policy=$run/policies/$step
    [ -d "$policy" ] || policy=$run/checkpoint-$step/policy
    [ -d "$policy" ] || policy=$run/checkpoint-$step
    python "$here/generate.py" --task "$task" --model "$policy" "${answer[@]}" --output_path "$output/$step.answers.json"
    python "$here/judge.py" --task "$task" --data_path "$output/$step.answers.json" --system "$system" --step "$step" \
        "${judge[@]}" --output_path "$output/$step.result.json"
done
echo "results -> $output/*.result.json"
printf 'next: python evaluation/report.py %q --results %q/*.result.json --output_path report.html\n' "$run" "$output"
