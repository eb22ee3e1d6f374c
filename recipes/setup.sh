# Sourced by recipes/<task>.sh, which sets `task` and the published `data` first: reads the flags, and says what --smoke
# makes small. The arrays below are further flags of each step; at full size the tasks' own files have all settings.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

smoke=false print=false model='' annotator='' judge='' run='' seed=42
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
if $smoke && [ -n "$model$annotator" ]; then
    echo "error: --smoke has a model and an annotator of its own; leave out --model and --annotator" >&2
    exit 2
fi
model=${model:-$base_model} annotator=${annotator:-openai:gpt-4o} run=${run:-runs/$task}

# run COMMAND ...: says the command as a person can type it, and runs it.
run() {
    printf '\n$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9_.,:=#@%+/-]*\)'/\1/g"
    $print || "$@"
}

if ! $print; then
    # shellcheck disable=SC1091
    source env.sh
    export TOKENIZERS_PARALLELISM=false TEXT2GRAD_NEXT=0 # what comes next, the recipe says
fi
if $smoke; then
    run=${run/#runs\/$task/runs/smoke-$task} model=$run/tiny_model annotator=programmatic
fi
baseline="bash nl_gradient_policy_optimization/baselines/run.sh"
splits=() sft=() answers=() train_rm=() infer=() pairs=() tune=() scalar=() critic=() policy=(--save_total_limit 10)
reflect=() measure=() benchmarks=()
if $smoke; then
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

# The steps that all recipes share.

train_reward_model() { # DATA NAME: on annotated records, or on labelled steps
    run bash nl_reward_model/$task/deepspeed_train_$task.sh --model "$model" --data_path "$1" --output_dir "$run/$2" \
        --seed "$seed" "${train_rm[@]}"
}

measure_reward_model() { # on the records that its training held out
    run python nl_reward_model/$task/evaluation/2_infer.py --model "$run/reward_model" --split validation \
        --data_path "$run/annotated.json" --output_path "$run/feedback.json" "${infer[@]}"
    run python nl_reward_model/$task/evaluation/3_metrics.py --data_path "$run/feedback.json" \
        --tokenizer "$model" --output_path "$run/reward_model.metrics.json"
}

train_policies() { # MODEL: Text2Grad and every baseline, from the same start; where answers have no steps, no PRM-PPO
    local start=(--model "$1" --seed "$seed")
    local prompts=(--data_path "$run/data/policy.json" "${start[@]}" "${policy[@]}")
    run bash nl_gradient_policy_optimization/$task/train_$task.sh --critic "$run/reward_model" \
        --output_dir "$run/text2grad" "${prompts[@]}" "${critic[@]}"
    run $baseline ppo $task --reward_model "$run/scalar_reward" --output_dir "$run/ppo" "${prompts[@]}"
    run $baseline ppo_delta $task --critic "$run/reward_model" --output_dir "$run/ppo_delta" "${prompts[@]}" "${critic[@]}"
    [ $task = ultrafeedback ] || run $baseline prm_ppo $task --critic "$run/process_reward_model" \
        --output_dir "$run/prm_ppo" "${prompts[@]}" "${critic[@]}"
    run $baseline dpo $task --data_path "$run/pairs.json" --output_dir "$run/dpo" "${start[@]}" "${tune[@]}"
}

train_scalar_reward() { # the scalar reward model of PPO, on pairs
    run $baseline scalar_reward $task --data_path "$run/pairs.json" --model "$model" --output_dir "$run/scalar_reward" \
        --seed "$seed" "${scalar[@]}"
}

evaluate_policies() { # SYSTEM ...: the start, SFT, and what was trained; `benchmarks` holds further flags
    local system policy_folder
    for system in "$@"; do
        policy_folder=$run/$system/policy
        case $system in base) policy_folder=$model ;; sft | dpo) policy_folder=$run/$system ;; esac
        run bash evaluation/$task/evaluate_$task.sh --data_path "$run/data/evaluation.json" --model "$policy_folder" \
            --system "$system" --output_dir "$run/evaluation/$system" "${benchmarks[@]}" "${measure[@]}"
    done
}

measure_reflection() { # MODEL: the start's answers to the held-out prompts, criticised and rewritten
    run $baseline reflect $task --data_path "$run/evaluation/$first/answers.json" --model "$1" \
        --critic "$run/reward_model" --output_path "$run/evaluation/reflect.json" "${reflect[@]}"
    run python evaluation/$task/evaluate.py --data_path "$run/evaluation/reflect.json" --system reflect \
        --output_path "$run/evaluation/reflect/result.json"
}

win_rate_curves() { # of Text2Grad and PPO against the start, by --judge
    local system
    for system in text2grad ppo; do
        run bash evaluation/win_rate_curve.sh --run "$run/$system" --task $task --data_path "$run/data/evaluation.json" \
            --baseline "$run/evaluation/$first/answers.json" --baseline_system $first --judge "$judge" --system $system \
            --output_dir "$run/curve/$system" "${measure[@]}"
    done
}
