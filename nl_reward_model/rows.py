"""Several responses to one prompt in one row: what their prompts have in common is read once, by training too.

A row is [shared; rest of response 1's prompt; z₁; rest of response 2's prompt; z₂; …]. Each rest sees the shared
tokens and itself, and its positions go on where the shared tokens end. So every token has the loss and the gradient
that it has in a row of its own.
"""

from collections.abc import Mapping, Sequence
from os.path import commonprefix

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from text2grad.critics.reward_model.examples import NO_LOSS, learnt


def shared_rows(
    examples: Sequence[Mapping[str, list[int]]], prompts: Sequence[str], most: int
) -> list[dict[str, list[int]]]:
    """Examples with one prompt, up to ``most`` of them, as one row each.

    Args:
        examples: ``input_ids`` and ``labels``.
        prompts: x of each example, by which they are put together.

    Returns:
        ``input_ids``, ``labels`` and ``segments``: how many tokens are shared, then how many each response adds.
    """
    groups: dict[str, list[Mapping[str, list[int]]]] = {}
    for example, prompt in zip(examples, prompts, strict=True):
        groups.setdefault(prompt, []).append(example)
    return [_row(group[at : at + most]) for group in groups.values() for at in range(0, len(group), most)]


def _row(examples: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    # a prompt's last token predicts z, so it is never shared
    shared = list(commonprefix([each["input_ids"][: -len(learnt(each)) - 1] for each in examples]))
    ids, labels, segments = list(shared), [NO_LOSS] * len(shared), [len(shared)]
    for each in examples:
        ids += each["input_ids"][len(shared) :]
        labels += each["labels"][len(shared) :]
        segments.append(len(each["labels"]) - len(shared))
    return {"input_ids": ids, "labels": labels, "segments": segments}


def collate(rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
    """Rows as one batch, padded on the right.

    Returns:
        ``input_ids``, ``labels``, ``position_ids`` ``[B, L]``, and ``attention_mask`` ``[B, 1, L, L]``, true where a
        token may look. Padding sees itself alone.
    """

    def padded(values: list[Tensor], fill: int) -> Tensor:
        return pad_sequence(values, batch_first=True, padding_value=fill)

    numbers = [torch.arange(len(row["segments"])).repeat_interleave(torch.tensor(row["segments"])) for row in rows]
    number = padded(numbers, -1)
    length = number.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = (number[:, None, :] == 0) | (number[:, :, None] == number[:, None, :])
    seen &= causal & (number >= 0)[:, :, None] & (number >= 0)[:, None, :]
    return {
        "input_ids": padded([torch.tensor(row["input_ids"]) for row in rows], 0),
        "labels": padded([torch.tensor(row["labels"]) for row in rows], NO_LOSS),
        "position_ids": padded([_positions(row["segments"]) for row in rows], 0),
        "attention_mask": (seen | torch.eye(length, dtype=torch.bool))[:, None],
    }


def _positions(segments: Sequence[int]) -> Tensor:
    shared, *own = segments
    return torch.cat([torch.arange(shared), *(shared + torch.arange(length) for length in own)])
