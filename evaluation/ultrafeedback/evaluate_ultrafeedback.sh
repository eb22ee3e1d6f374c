#!/usr/bin/env bash
# Answers of one policy to open questions: ARC-Challenge, and, where a judge is named, AlpacaEval 2.0 and MT-Bench.
#   bash evaluation/ultrafeedback/evaluate_ultrafeedback.sh --model smollm2 --output_dir runs/eval/base --system base \
#       --arc_path evaluation/ultrafeedback/sample_arc.jsonl
# Further flags:
#   --data_path FILE          held-out requests in the UltraFeedback format: answers, length, and with --critic δ per token
#   --critic CRITIC           programmatic, a reward model's folder, or an endpoint
#   --arc_path FILE           ARC-Challenge's questions as .jsonl; without it lm-eval fetches them
#   --judge JUDGE             openai:MODEL or http://HOST:PORT/v1#MODEL; for AlpacaEval it must give log-probabilities
#   --alpaca_path FILE        AlpacaEval's reference outputs; "hub" fetches them
#   --mt_bench_path FILE      FastChat's question.jsonl
#   --mt_bench_references FILE   its gpt-4.jsonl; without it maths, coding and reasoning are graded without references
#   --only "LIST", --skip "LIST"   of held_out (the requests of --data_path), arc, alpaca_eval and mt_bench
#   --base_url URL            the model is served there (ARC then needs --tokenizer NAME)
#   --limit N, --batch_size N, --max_new_tokens N, --seed N
# A missing package leaves out its own benchmark alone; the end of the output says which, and how to install it.
set -euo pipefail
source "$(dirname "$0")/../benchmarks.sh"
here=$evaluation/ultrafeedback
model=() answer=() arc=() limit=() critic=() data= judge= alpaca= questions= references= output= system= arc_asked=no
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --model|--base_url|--batch_size) model+=("$1" "$2") ;;
        --max_new_tokens|--seed) answer+=("$1" "$2") ;;
        --limit) limit=("$1" "$2") ;;
        --critic) critic=("$1" "$2") ;;
        --data_path) data=$2 ;;
        --arc_path) arc+=(--data_path "$2") arc_asked=yes ;;
        --tokenizer) arc+=("$1" "$2") ;;
        --judge) judge=$2 ;;
        --alpaca_path) alpaca=$2 ;;
        --mt_bench_path) questions=$2 ;;
        --mt_bench_references) references=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        --only) only=$2 ;;
        --skip) skip=$2 ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$output" ] && [ -n "$system" ] || { echo "error: --output_dir and --system are needed; see the head of $0" >&2; exit 2; }
check_names held_out arc alpaca_eval mt_bench
for pair in "held_out:$data:--data_path" "alpaca_eval:$alpaca:--alpaca_path" "mt_bench:$questions:--mt_bench_path"; do
    name=${pair%%:*} flag=${pair##*:}
    if [[ " $only " == *" $name "* && $pair == "$name::$flag" ]]; then
        echo "error: --only $name needs $flag; see the head of $0" >&2
        exit 2
    fi
done
if [ -n "$alpaca$questions" ] && [ -z "$judge" ]; then
    echo "error: AlpacaEval and MT-Bench need --judge; see the head of $0" >&2
    exit 2
fi

held_out() {
    python "$evaluation/generate.py" --task ultrafeedback --data_path "$data" "${model[@]}" "${answer[@]}" "${limit[@]}" \
        --output_path "$output/answers.json" &&
    python "$here/evaluate.py" --data_path "$output/answers.json" "${critic[@]}" --system "$system" \
        --output_path "$output/result.json"
}
alpaca_eval() {
    local file=()
    [ "$alpaca" = hub ] || file=(--reference_path "$alpaca")
    python "$here/alpaca_outputs.py" "${model[@]}" "${answer[@]}" "${limit[@]}" "${file[@]}" --system "$system" \
        --output_path "$output/alpaca.outputs.json" &&
    python "$here/alpaca_score.py" --outputs "$output/alpaca.outputs.json" "${file[@]}" --system "$system" --judge "$judge" \
        --output_path "$output/alpaca.result.json"
}
mt_bench() {
    local beside=(--without_references)
    [ -z "$references" ] || beside=(--references "$references")
    python "$here/mt_bench_answers.py" --questions "$questions" "${model[@]}" "${answer[@]}" "${limit[@]}" \
        --system "$system" --output_path "$output/mt_bench.answers.jsonl" &&
    python "$here/mt_bench_judge.py" --questions "$questions" --answers "$output/mt_bench.answers.jsonl" "${beside[@]}" \
        --system "$system" --judge "$judge" --output_path "$output/mt_bench.result.json" --plot "$output/mt_bench.svg"
}
[ -z "$data" ] || benchmark held_out yes "" "$output/result.json" held_out
benchmark arc "$arc_asked" lm_eval "$output/arc.result.json" python "$here/arc_challenge.py" "${model[@]}" "${limit[@]}" \
    "${arc[@]}" --system "$system" --output_path "$output/arc.result.json"
[ -z "$alpaca" ] || benchmark alpaca_eval yes alpaca_eval "$output/alpaca.result.json" alpaca_eval
[ -z "$questions" ] || benchmark mt_bench yes "" "$output/mt_bench.result.json" mt_bench
summarise
