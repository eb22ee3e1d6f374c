"""A reward model that a server holds: what its folder, if it is here, says about the prompts it was trained on."""

from pathlib import Path

from text2grad.critics.reward_model.critic import (
    DESCRIPTION_FILE,
    PROMPT_FILE,
    RewardModelDescription,
)
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.tasks import Task


def served_reward_model(prompt: str | Path, task: Task) -> tuple[RewardModelDescription, RewardPrompt | None] | None:
    """The description, and the prompt with tokenizer and length; None where the file is in no reward model's folder.

    The prompt is None in an adapter's folder, which does not say how its tokenizer is read.

    Args:
        prompt: a prompt file; a reward model's is ``reward_prompt.txt`` in its folder.
    """
    path = Path(prompt)
    if path.name != PROMPT_FILE or not (path.parent / DESCRIPTION_FILE).is_file():
        return None
    description, text = RewardModelDescription.load(path.parent, task)
    if not all((path.parent / name).is_file() for name in ("tokenizer_config.json", "config.json")):
        return description, None
    from text2grad.models import load_tokenizer

    tokenizer = load_tokenizer(str(path.parent))
    task = description.task_learnt(task)
    return description, RewardPrompt(text, task, tokenizer, description.prompt_max_length, description.shorten)
