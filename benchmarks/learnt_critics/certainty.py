"""What a critic's own doubts are worth: its quality without the quotes that it wrote with less than some probability.

python benchmarks/learnt_critics/certainty.py --critic runs/learnt_critics/worked/critic-1500
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from benchmarks.learnt_critics.annotated import Critique, annotated
from benchmarks.learnt_critics.policies import critic_at
from benchmarks.learnt_critics.quality import figures, label_pairs
from benchmarks.micro.task import PROFILES
from benchmarks.pages import check_page, markdown_table, page_setting, write_section
from text2grad.configs import parse, setting
from text2grad.critics.reward_model.certainty import without_doubtful
from text2grad.critics.reward_model.critic import RewardModelCritic
from text2grad.errors import InputError, command
from text2grad.feedback import Feedback, FeedbackError
from text2grad.models import load_tokenizer
from text2grad.records import load_json
from text2grad.tasks import Record
from text2grad.token_text import token_spans

SECTION = "certainty"
LEAST = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass
class CertaintyConfig:
    """Which critic."""

    study: str = setting("runs/learnt_critics", "the study's folder")
    critic: str = setting("", "the folder of a critic that learnt on it")
    critique: Critique = setting("worked", "what it learnt to write before the quotes")
    page: str = page_setting(SECTION)


def certainty_table(critic: RewardModelCritic, records: Sequence[Record], tokenizer: PreTrainedTokenizerBase) -> str:
    """A row for each probability in ``LEAST``; the responses are read once. Figures are on the tokenizer's tokens."""
    chances: list[tuple[list[int], list[float]]] = []
    prompts, responses = [PROFILES.prompt(record) for record in records], [record["response"] for record in records]
    replies = [critic.parse(text) for text in critic.write(prompts, responses, records, chances=chances)]
    rows = []
    for least in LEAST:
        sure = [_sure(critic, *pair, least) for pair in zip(replies, chances, strict=True)]
        truth, said = label_pairs(records, sure, tokenizer)
        found = figures(truth, said)
        marked = sum(abs(row).sum() for row in said) / sum(abs(row).sum() for row in truth)
        shown = ["–" if value is None else f"{value:.2f}" for value in found.values()]
        rows.append([f"{least:g}", *shown, f"{marked:.2f}"])
    header = ["least probability of a quote", "F1 of good tokens", "F1 of poor tokens", "flips"]
    return markdown_table([*header, "correlation of mean δ", "tokens marked, to those that should be"], rows)


def _sure(
    critic: RewardModelCritic, reply: Feedback | FeedbackError, chance: tuple[list[int], list[float]], least: float
) -> Feedback | FeedbackError:
    if isinstance(reply, FeedbackError):
        return reply
    text, spans = token_spans(chance[0], critic.prompt.tokenizer)
    return without_doubtful(reply, PROFILES.fields, text, spans, chance[1], least)


@command
def main() -> None:
    config = parse(CertaintyConfig)
    if not config.critic:
        raise InputError("--critic is missing; give the folder that train_critic.py kept")
    check_page(config.page, SECTION)
    torch.set_num_threads(1)
    records = [annotated(record, config.critique) for record in load_json(Path(config.study) / "held_out.json")]
    critic = critic_at(config.critic)
    if not isinstance(critic, RewardModelCritic):
        raise InputError(f"--critic {config.critic}: the program has no doubts; give a folder")
    table = certainty_table(critic, records, load_tokenizer(str(Path(config.study) / "starting_policy")))
    write_section(config.page, SECTION, table)
    print(table)


if __name__ == "__main__":
    main()
