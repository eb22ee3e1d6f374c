"""TRL's SFTTrainer, but on a CPU it scores only the positions that have a loss."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from trl import SFTTrainer

from text2grad.critics.reward_model.examples import NO_LOSS
from text2grad.models import base_model
from text2grad.models.head import WithGradient, chunk_length, head_inputs, is_frozen, vocabulary_head


class RewardTrainer(SFTTrainer):
    """On a GPU this is ``SFTTrainer``, whose Triton kernel scores z alone.

    Without Triton it projects every position onto the vocabulary, prompt included, which takes longer than all layers
    of a small model together. Here the language-model head sees the columns in which some row of the batch has a
    label, and a frozen one a chunk of them at a time; the loss is the same. So does it on any device where rows hold
    several responses (``rows.py``) or first words weigh more. Another loss than the plain one, and packing, are left
    to TRL.
    """

    first_word = 0
    """Tokens of every z before the first that tells one from another."""

    def create_model_card(self, *args, **kwargs) -> None:
        """The folder's README.md is ours (``card.py``)."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = self.args.first_word_weight if model.training else 1.0
        ours = self.args.responses_per_row > 1 or weight != 1 or self.args.device.type != "cuda"
        plain = self.args.loss_type == "nll" and self.label_smoother is None and not self.args.packing
        if return_outputs or not plain or not ours:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        first = first_words(inputs["labels"], self.first_word)[:, 1:]
        labels = inputs["labels"][:, 1:]  # the token that each position predicts
        columns = (labels != NO_LOSS).any(dim=0).nonzero().squeeze(1)
        labels, weights = labels[:, columns].flatten(), 1 + (weight - 1) * first[:, columns].flatten()
        base = base_model(self.model)
        frozen = is_frozen(base)
        recording: AbstractContextManager[list[Tensor]] = head_inputs(base) if frozen else nullcontext([])
        with recording as states:
            outputs = model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                position_ids=inputs.get("position_ids"),  # where a row holds several responses
                use_cache=False,
                logits_to_keep=columns,
            )
        right, known = torch.zeros_like(labels[:1]), (labels != NO_LOSS).sum()

        def losses_of(scores: Tensor, wanted: Tensor) -> Tensor:
            right.add_((scores.argmax(-1) == wanted).sum())
            return cross_entropy(scores.float(), wanted, ignore_index=NO_LOSS, reduction="none")

        if frozen:
            head = vocabulary_head(base, exact=False)
            chunks = states[0].flatten(0, 1), labels, lambda part, wanted: losses_of(head(part), wanted)
            losses = WithGradient.apply(*chunks, chunk_length(base.config))
        else:
            losses = losses_of(outputs.logits.flatten(0, 1), labels)
        loss = (losses * weights).sum()
        counts = self.accelerator.gather(torch.stack([right.sum(), known])[None]).sum(dim=0).tolist()
        mode = "train" if model.training else "eval"
        self._metrics[mode]["mean_token_accuracy"].append(counts[0] / max(1, counts[1]))
        if num_items_in_batch is None:
            return loss / known
        # num_items_in_batch counts the labels of all ranks, whose gradients are averaged afterwards.
        scale = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss * scale / num_items_in_batch


def first_words(labels: Tensor, skipped: int) -> Tensor:
    """The token of each z, ``[B, L]`` with ``NO_LOSS`` around each, that follows its first ``skipped``."""
    known = labels != NO_LOSS
    begins = known & ~pad(known, (1, 0))[:, :-1]
    return pad(begins, (skipped, 0))[:, : labels.shape[1]]
