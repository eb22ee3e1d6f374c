#!/usr/bin/env bash
# Programs of one policy: HumanEval by EvalPlus, and the held-out KodCode questions by their unit tests.
#   bash evaluation/kodcode/evaluate_kodcode.sh --model smollm2 --output_dir runs/eval/base --system base --base_only
# Further flags:
#   --base_url URL            the model is served there
#   --data_path FILE          KodCode questions with tests
#   --benchmarks "LIST"       of humaneval and mbpp (default humaneval; mbpp needs the net or --mbpp_path)
#   --base_only               without the additional tests of HumanEval+ and MBPP+; HumanEval then needs no network
#   --humaneval_path FILE, --mbpp_path FILE   EvalPlus' own data files
#   --critic CRITIC           δ per token on the KodCode questions
#   --num_samples N, --k "1 10"   several programs per problem, pass@k
#   --limit N, --batch_size N, --max_new_tokens N, --temperature T, --seed N, --workers N
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
answer=() score=() base=() measure=() data= output= system= benchmarks=humaneval humaneval= mbpp= k=1
while [ $# -gt 0 ]; do
    if [ "$1" = --base_only ]; then base=(--base_only); shift; continue; fi
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --model|--base_url|--limit|--batch_size|--max_new_tokens|--temperature|--seed|--num_samples) answer+=("$1" "$2") ;;
        --workers) score+=("$1" "$2") ;;
        --critic) measure+=("$1" "$2") ;;
        --k) k=$2 ;;
        --data_path) data=$2 ;;
        --benchmarks) benchmarks=$2 ;;
        --humaneval_path) humaneval=$2 ;;
        --mbpp_path) mbpp=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$output" ] && [ -n "$system" ] || { echo "error: --output_dir and --system are needed; see the head of $0" >&2; exit 2; }

# shellcheck disable=SC2206
ks=($k)
for dataset in $benchmarks; do
    file=()
    [ "$dataset" = humaneval ] && [ -n "$humaneval" ] && file=(--dataset_path "$humaneval")
    [ "$dataset" = mbpp ] && [ -n "$mbpp" ] && file=(--dataset_path "$mbpp")
    python "$here/kodcode/evalplus_samples.py" --dataset "$dataset" "${base[@]}" "${file[@]}" "${answer[@]}" \
        --output_path "$output/$dataset.jsonl"
    python "$here/kodcode/evalplus_score.py" --dataset "$dataset" "${base[@]}" "${file[@]}" --samples "$output/$dataset.jsonl" \
        --system "$system" --k "${ks[@]}" "${score[@]}" --output_path "$output/$dataset.result.json"
done
if [ -n "$data" ]; then
    python "$here/generate.py" --task kodcode --data_path "$data" "${answer[@]}" --output_path "$output/answers.json"
    python "$here/kodcode/evaluate.py" --responses "$output/answers.json" --system "$system" --k "${ks[@]}" \
        "${score[@]}" "${measure[@]}" --output_path "$output/result.json"
fi
