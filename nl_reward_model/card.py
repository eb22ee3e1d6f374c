"""The README.md of a reward model's folder: what it was trained on, how well it did, how to use it."""

from pathlib import Path

from tabulate import tabulate

from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, PROMPT_FILE, RewardModelDescription
from text2grad.journal.run_folder import changes_shown
from text2grad.models import card_header, card_loading
from text2grad.prompts import Prompt
from text2grad.tasks.commands import SERVE, stage_command

_METRICS = {
    "step": "training steps",
    "best_step": "step of the weights here, the lowest validation loss",
    "train_loss": "training loss, mean",
    "eval_loss": "validation loss",
    "eval_mean_token_accuracy": "validation tokens predicted right, given those before them",
    "eval_feedback_parse_rate": "share of its feedback that can be read",
    "eval_feedback_quotes": "quotes in each",
    "eval_feedback_unmatched_rate": "share of its quotes that are not in the response",
}


def figure(value: float) -> str:
    """A number of steps in full, anything else in four digits."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def reward_model_card(description: RewardModelDescription, prompt: Prompt, adapter: bool) -> str:
    """Task, base, data, prompt, settings, metrics, and how to load and use it, in the form that hubs read.

    Args:
        adapter: whether the folder holds a LoRA adapter rather than whole weights.
    """
    data, kind = description.data, "adapter" if adapter else "model"
    written = "a critique, then" if description.critique else "without a critique,"
    task = description.task, description.task_source
    metrics = {name: value for name, value in description.metrics.items() if value is not None}
    rows = [[label, figure(metrics[name])] for name, label in _METRICS.items() if name in metrics]
    table = "Not measured yet.\n"
    if rows:
        table = tabulate(rows, ["measured in training", ""], tablefmt="github", disable_numparse=True) + "\n"
    merge = "python nl_reward_model/merge_lora.py --model THIS_FOLDER --output_dir MERGED\n" if adapter else ""
    settings = "\n".join(f"- {name}: {value}" for name, value in description.settings.items() if name != "model")
    settings += changes_shown(description.changes)
    versions = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    own = f" and validation records from {Path(data['validation_path']).name}" if data.get("validation_path") else ""
    return f"""{card_header(description.base_model, adapter, ["reward-model", description.task])}
# A reward model for {description.task}, trained from {description.base_model}

This {kind} writes feedback on a response in natural language: {written} the good and the poor parts of the
response as quotes. Policies are trained with it by [Text2Grad](https://arxiv.org/abs/2505.22338). The feedback is one
JSON object, at most {description.max_new_tokens} tokens long.

- base: {description.base_model}
- data: {Path(data["path"]).name}, hash `{data["hash"]}`{own}
- records: {data["training"]} trained on, {data["validation"]} of other prompts held out, {data["shortened"]} with a
  shortened prompt, {len(data["dropped"])} too long and left out
- prompt: `{PROMPT_FILE}`, hash `{prompt.fingerprint}`

## Metrics

{table}
The validation loss covers all held-out records, the feedback figures only a few. `2_infer.py` and `3_metrics.py`
measure all of them, label by label and against chance.

## Using it

```bash
# as the critic that trains a policy
{stage_command("policy", *task)} --critic THIS_FOLDER --data_path PROMPTS --output_dir RUN
# feedback on a file of responses
{stage_command("feedback", *task)} --model THIS_FOLDER --data_path RESPONSES --output_path OUT.json
# from a server: {"merge the adapter, " if adapter else ""}serve the folder, name its prompt
{merge}{SERVE} {"MERGED" if adapter else "THIS_FOLDER"} --served-model-name reward_model
{stage_command("policy", *task)} --critic http://localhost:8000/v1#reward_model \\
    --critic_prompt THIS_FOLDER/{PROMPT_FILE} --data_path PROMPTS --output_dir RUN
```

A small model's feedback is often cut off or misquotes. `--critic_constrained quotes` in training, or
`--constrained quotes` in `2_infer.py`, makes every quote a part of the response.

{card_loading(description.base_model, adapter)}
## Settings

{settings}

Trained with {versions}. `{DESCRIPTION_FILE}` holds all of this for programs.
"""
