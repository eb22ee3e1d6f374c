# Sourced by recipes/<task>.sh, which sets `task` and the published `data` first: reads the flags, and says what --smoke
# makes small. The arrays below are further flags of each step; at full size the tasks' own files have all settings.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

smoke=false print=false model='' annotator=openai:gpt-4o judge='' run='' seed=42
while [ $# -gt 0 ]; do
    case $1 in
        --smoke) smoke=true ;;
        --print) print=true ;;
        --model | --annotator | --judge | --run_dir | --seed)
            name=${1#--}
            [ "$name" = run_dir ] && name=run
            printf -v "$name" %s "${2:?$1 needs a value}"
            shift
            ;;
        *) echo "error: unknown option $1; see the head of $0" >&2; exit 2 ;;
    esac
    shift
done
model=${model:-$base_model} run=${run:-runs/$task}

# run COMMAND ...: says the command as a person can type it, and runs it.
run() {
    printf '\n$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9_.,:=#@%+/-]*\)'/\1/g"
    $print || "$@"
}

if ! $print; then
    # shellcheck disable=SC1091
    source env.sh
    export TOKENIZERS_PARALLELISM=false
fi
baseline="bash nl_gradient_policy_optimization/baselines/run.sh"
evaluate="bash evaluation/$task/evaluate_$task.sh --data_path $run/data/evaluation.json"
splits=() sft=() answers=() train_rm=() infer=() pairs=() tune=() scalar=() critic=() policy=(--save_total_limit 10)
reflect=() measure=()
if $smoke; then
    run=${run/#runs\/$task/runs/smoke-$task} model=$run/tiny_model annotator=programmatic
    evaluate="bash evaluation/$task/evaluate_$task.sh --data_path $run/data/evaluation.json"
    export DS_ACCELERATOR=cpu PROCESSES=2 RANKS=2 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore::FutureWarning
    [ -d "$model" ] || run python quickstart/tiny_model.py "$model"
    short=(--max_prompt_tokens 600 --max_new_tokens 160)
    fast=(--dtype float32 --report_to none)
    splits=(--evaluation_records 4)
    tune=("${fast[@]}" "${short[@]}" --max_steps 2 --save_steps 1 --gradient_accumulation_steps 1
        --gradient_checkpointing false --validation_share 0)
    sft=("${tune[@]}") scalar=("${tune[@]}")
    answers=(--max_new_tokens 16 --batch_size 32)
    train_rm=("${fast[@]}" --prompt no_cot --max_prompt_tokens 900 --max_length 1400 --max_steps 2 --eval_steps 2
        --save_steps 2 --feedback_records 1)
    infer=(--constrained quotes)
    pairs=(--tokenizer "$model")
    critic=(--critic_constrained quotes --max_critic_failures 1)
    policy=("${fast[@]}" --max_prompt_tokens 600 --max_new_tokens 16 --rollouts_per_device 2 --ppo_epochs 1 --max_steps 2
        --save_every 1 --log_rollouts_every 1 --gradient_checkpointing false)
    reflect=(--max_new_tokens 16)
    measure=(--limit 4 --max_new_tokens 16 --batch_size 4)
fi
