"""A reward model that a server holds: what its folder, if it is here, says about the prompts it was trained on."""

from __future__ import annotations

from pathlib import Path

from text2grad.critics.reward_model.critic import (
    DESCRIPTION_FILE,
    PROMPT_FILE,
    RewardModelDescription,
)
from text2grad.critics.reward_model.prompt import RewardPrompt
from text2grad.tasks import Task


def served_reward_model(prompt: str | Path, task: Task) -> tuple[RewardPrompt, RewardModelDescription] | None:
    """The prompt with its tokenizer and length, and the description; None where no reward model is beside the file.

    Args:
        prompt: a prompt file; a reward model's is ``reward_prompt.txt`` in its folder.
    """
    path = Path(prompt)
    beside = (DESCRIPTION_FILE, "tokenizer_config.json", "config.json")
    if path.name != PROMPT_FILE or not all((path.parent / name).is_file() for name in beside):
        return None
    from text2grad.models import load_tokenizer

    description, text = RewardModelDescription.load(path.parent, task)
    tokenizer = load_tokenizer(str(path.parent))
    return RewardPrompt(text, task, tokenizer, description.prompt_max_length, description.shorten), description
