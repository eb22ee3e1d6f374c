#!/usr/bin/env bash
# Summaries of one policy: answers, metrics, and, where a judge is named, its win rate over another policy's answers.
#   bash evaluation/slf5k/evaluate_slf5k.sh --model smollm2 --data_path posts.json --output_dir runs/eval/base --system base
# Further flags:
#   --base_url URL            the model is served there
#   --critic CRITIC           δ per token: programmatic, a reward model's folder, or an endpoint
#   --tokenizer NAME          whose tokens δ is counted in (default smollm2; the same for all systems)
#   --bertscore_model NAME    encoder for BERTScore (roberta-large is the usual one)
#   --perplexity_model NAME   causal LM for perplexity
#   --baseline DIR            output_dir of another system: differences by paired bootstrap
#   --judge JUDGE             openai:MODEL or http://HOST:PORT/v1#MODEL: win rate over --baseline
#   --step N                  the checkpoint's training step, for win-rate curves
#   --limit N, --batch_size N, --max_new_tokens N, --temperature T, --seed N
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
answer=() measure=() judge=() baseline= output= system=
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of $0" >&2; exit 2; }
    case $1 in
        --model|--base_url|--data_path|--limit|--batch_size|--max_new_tokens|--temperature|--seed) answer+=("$1" "$2") ;;
        --critic|--tokenizer|--bertscore_model|--perplexity_model) measure+=("$1" "$2") ;;
        --judge|--step) judge+=("$1" "$2") ;;
        --baseline) baseline=$2 ;;
        --output_dir) output=$2 ;;
        --system) system=$2 ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -n "$output" ] && [ -n "$system" ] || { echo "error: --output_dir and --system are needed; see the head of $0" >&2; exit 2; }

python "$here/generate.py" --task slf5k "${answer[@]}" --output_path "$output/answers.json"
[ -n "$baseline" ] && measure+=(--compare_with "$baseline/result.json")
python "$here/slf5k/evaluate.py" --responses "$output/answers.json" --system "$system" \
    --output_path "$output/result.json" "${measure[@]}"
if [ ${#judge[@]} -gt 0 ]; then
    [ -n "$baseline" ] || { echo "error: --judge needs --baseline, whose answers are judged beside these" >&2; exit 2; }
    python "$here/judge.py" --task slf5k --responses "$output/answers.json" --system "$system" "${judge[@]}" \
        --baseline "$baseline/answers.json" --baseline_system "$(basename "$baseline")" \
        --output_path "$output/judge.result.json"
fi
