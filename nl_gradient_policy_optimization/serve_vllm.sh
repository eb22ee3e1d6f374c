#!/usr/bin/env bash
# bash nl_gradient_policy_optimization/serve_vllm.sh MODEL [flags of vLLM]
# Serves a model by vLLM: for stage 3 to sample from (--generation vllm_server), or as a critic or judge of any stage.
#   MODEL                      hub id, folder, or smollm2; the same as the policy's --model
#   --port 8000 --max-lora-rank 64 --tensor-parallel-size 4    further flags go to vLLM, and win over those here
#   VLLM_VENV=.venv-vllm       the environment that `bash env.sh --vllm` made
#   VLLM_CPU_KVCACHE_SPACE=1   on a CPU: GiB for keys and values
# It binds to this machine alone; for others, add --host 0.0.0.0 and --api-key, and export VLLM_API_KEY to the trainer.
set -euo pipefail
if (($# < 1)); then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VLLM_VENV:-$root/.venv-vllm}
if [ ! -x "$venv/bin/python" ]; then
    echo "error: no vLLM in $venv; run \`bash env.sh --vllm\`, or set VLLM_VENV to its environment" >&2
    exit 2
fi
name=$1 model=$1
shift
if [ "$model" = smollm2 ]; then
    model=$(PYTHONPATH=$root "${VENV:-$root/.venv}/bin/python" -c \
        'from text2grad.models import model_path; print(model_path("smollm2"))')
fi
# Adapters are loaded while the server runs. Its log-probabilities are of the distribution that samples.
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_NO_USAGE_STATS=1
settings=(--host 127.0.0.1 --served-model-name "$name" --enable-lora --max-lora-rank 16 --max-loras 1)
settings+=(--logprobs-mode processed_logprobs)
settings+=(--default-chat-template-kwargs '{"enable_thinking": false}') # as prompts are made in training
# For --critic_constrained quotes: what vLLM takes by default does not know substrings.
settings+=(--structured-outputs-config.backend guidance)
if ! command -v nvidia-smi >/dev/null; then
    export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
    settings+=(--enforce-eager)
fi
unset PYTHONPATH # the server has libraries of its own
# The package for CPUs has another name than the one that the command `vllm` looks for.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" "${settings[@]}" "$@"
