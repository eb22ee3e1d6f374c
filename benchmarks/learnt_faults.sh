#!/usr/bin/env bash
# A reward model that learns known faults, measured on prompts that it never saw: on known faults there, and on the real
# responses there with the program's annotations.
#   bash benchmarks/learnt_faults.sh kodcode solutions_with_tests.json runs/learnt_faults/kodcode
#   bash benchmarks/learnt_faults.sh ultrafeedback responses.json runs/learnt_faults/ultrafeedback
# ROUNDS=4 makes half of the records, EPOCHS=3 reads them three times, MODEL=... trains another model.
# Interrupted? The same command goes on.
set -euo pipefail
task=$1 data=$2 run=$3
export TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python}
case $task in
kodcode) critic=programmatic ;;
ultrafeedback) critic=text2grad.critics.programs.ultrafeedback.critic:WorkedAnswerCritic ;;
*) echo "learnt_faults.sh: no task $task; give kodcode or ultrafeedback" >&2 && exit 2 ;;
esac
vary() {
    [ -f "$run/$1_varied.json" ] || "$python" "rm_data_anno/$task/variations.py" --data_path "$run/$1.json" \
        --rounds "$2" --output_path "$run/$1_varied.json"
}

"$python" benchmarks/learnt_faults.py --task "$task" --data_path "$data" --output_dir "$run"
vary training "${ROUNDS:-8}"
vary held_out 1
"$python" "rm_data_anno/$task/dual_feedback_annotation_RM.py" --critic "$critic" --data_path "$run/held_out.json" \
    --output_path "$run/held_out_real.json" || [ $? = 1 ] # 1: some tests cannot judge any solution
"$python" "nl_reward_model/$task/train_rm.py" --config benchmarks/learnt_faults.yaml --model "${MODEL:-smollm2}" \
    --num_train_epochs "${EPOCHS:-1}" --data_path "$run/training_varied.json" --output_dir "$run/reward_model"
for part in varied real; do
    "$python" "nl_reward_model/$task/evaluation/2_infer.py" --model "$run/reward_model" --constrained quotes \
        --data_path "$run/held_out_$part.json" --output_path "$run/feedback_$part.json"
    "$python" "nl_reward_model/$task/evaluation/3_metrics.py" --data_path "$run/feedback_$part.json" \
        --output_path "$run/metrics_$part.json"
done
