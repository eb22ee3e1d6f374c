#!/usr/bin/env bash
# Summaries of one policy: answers, metrics, and, where a judge is named, its win rate over another policy's answers.
#   bash evaluation/slf5k/evaluate_slf5k.sh --model smollm2 --data_path posts.json --output_dir runs/eval/base --system base
# Further flags:
#   --base_url URL            the model is served there
#   --critic CRITIC           δ per token: programmatic, a reward model's folder, or an endpoint
#   --tokenizer NAME          whose tokens δ is counted in (default smollm2; the same for all systems)
#   --bertscore_model NAME    encoder for BERTScore (roberta-large is customary)
#   --perplexity_model NAME   causal LM for perplexity
#   --baseline DIR            output_dir of another system: differences by paired bootstrap
#   --judge JUDGE             openai:MODEL or http://HOST:PORT/v1#MODEL: win rate over --baseline
#   --step N                  the checkpoint's training step, for win-rate curves
#   --only "LIST", --skip "LIST"   of metrics, bertscore and judge
#   --limit N, --batch_size N, --max_new_tokens N, --temperature T, --seed N
# A missing package leaves out its own benchmark alone; the end of the output says which, and how to install it.
set -euo pipefail
source "$(dirname "$0")/../benchmarks.sh"
answer=() measure=() encoder=() judge=() baseline= output= system=
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --model|--base_url|--data_path|--limit|--batch_size|--max_new_tokens|--temperature|--seed) answer+=("$1" "$2") ;;
        --critic|--tokenizer|--perplexity_model) measure+=("$1" "$2") ;;
        --bertscore_model) encoder=("$1" "$2") ;;
        --judge|--step) judge+=("$1" "$2") ;;
        --baseline) baseline=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        --only) only=$2 ;;
        --skip) skip=$2 ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$output" ] && [ -n "$system" ] || { echo "error: --output_dir and --system are needed; see the head of $0" >&2; exit 2; }
check_names metrics bertscore judge
if [ ${#judge[@]} -gt 0 ] && [ -z "$baseline" ]; then
    echo "error: --judge needs --baseline, whose answers are judged beside these" >&2
    exit 2
fi

python "$evaluation/generate.py" --task slf5k "${answer[@]}" --output_path "$output/answers.json"
[ -z "$baseline" ] || measure+=(--compare_with "$baseline/result.json")
[ ${#encoder[@]} -eq 0 ] || benchmark bertscore yes bert_score "" true  # it is one of the metrics
[[ ${#results[@]} -eq 0 ]] || measure+=("${encoder[@]}")
results=()
benchmark metrics yes "" "$output/result.json" python "$evaluation/slf5k/evaluate.py" \
    --data_path "$output/answers.json" --system "$system" --output_path "$output/result.json" "${measure[@]}"
[ ${#judge[@]} -eq 0 ] || benchmark judge yes "" "$output/judge.result.json" python "$evaluation/judge.py" --task slf5k \
    --data_path "$output/answers.json" --system "$system" "${judge[@]}" --baseline "$baseline/answers.json" \
    --baseline_system "$(basename "$baseline")" --output_path "$output/judge.result.json"
summarise
