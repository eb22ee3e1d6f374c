# Sourced at the end of recipes/<task>.sh: all runs and results of the recipe on one page.
runs=() annotation=() metrics=()
for system in text2grad ppo ppo_delta prm_ppo; do
    if $print || [ -f "$run/$system/run.json" ]; then runs+=("$run/$system"); fi
done
[ ! -f "$run/annotated.json.report.json" ] || annotation=(--annotation "$run/annotated.json.report.json")
[ ! -f "$run/reward_model.metrics.json" ] || metrics=(--reward_model "$run/reward_model.metrics.json")
mapfile -t results < <(find "$run/evaluation" "$run/curve" -name '*result.json' 2>/dev/null | sort)
run python evaluation/report.py "${runs[@]}" --baseline "$first" --output_path "$run/report.html" \
    ${results[@]:+--results "${results[@]}"} "${annotation[@]}" "${metrics[@]}"
