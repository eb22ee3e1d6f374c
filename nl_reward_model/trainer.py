"""TRL's SFTTrainer, but on a CPU it scores only the tokens that have a loss."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from trl import SFTTrainer

from text2grad.critics.reward_model.examples import NO_LOSS
from text2grad.models import base_model
from text2grad.models.head import WithGradient, chunk_length, head_inputs, is_frozen, vocabulary_head


class RewardTrainer(SFTTrainer):
    """On a GPU this is ``SFTTrainer``, whose Triton kernel scores z alone.

    Without Triton it projects every position onto the vocabulary, prompt included, which takes longer than all layers
    of a small model together. Here the language-model head sees the tokens of z, a chunk at a time; the loss is the
    same. So does it on any device where rows hold several responses (``rows.py``). Another loss than the plain one,
    and packing, are left to TRL.
    """

    def create_model_card(self, *args, **kwargs) -> None:
        """The folder's README.md is ours (``card.py``)."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        shared = self.args.responses_per_row > 1
        plain = self.args.loss_type == "nll" and self.label_smoother is None and not self.args.packing
        if return_outputs or not plain or (self.args.device.type == "cuda" and not shared):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"][:, 1:]  # the token that each position predicts
        columns = (labels != NO_LOSS).any(dim=0).nonzero().squeeze(1)
        labels = labels[:, columns]
        known = labels != NO_LOSS
        with head_inputs(base_model(self.model)) as states:
            model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                position_ids=inputs.get("position_ids"),  # where a row holds several responses
                use_cache=False,
                logits_to_keep=columns,
            )
        loss, right = self._losses(states[0][known], labels[known])
        counts = self.accelerator.gather(torch.stack([right, known.sum()])[None]).sum(dim=0).tolist()
        mode = "train" if model.training else "eval"
        self._metrics[mode]["mean_token_accuracy"].append(counts[0] / max(1, counts[1]))
        if num_items_in_batch is None:
            return loss / known.sum()
        # num_items_in_batch counts the labels of all ranks, whose gradients are averaged afterwards.
        scale = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss * scale / num_items_in_batch

    def _losses(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, H], [N]``: the summed loss of the labels, and how many of them are the likeliest token."""
        base = base_model(self.model)
        head, length = vocabulary_head(base, exact=False), chunk_length(base.config)
        right = torch.zeros((), dtype=torch.long, device=hidden.device)

        def of_chunk(states: Tensor, wanted: Tensor) -> Tensor:
            logits = head(states)
            right.add_((logits.argmax(-1) == wanted).sum())
            return cross_entropy(logits, wanted, reduction="none")

        if not is_frozen(base):  # ZeRO-3 gathers the head at each use, which must be as many on every rank
            return of_chunk(hidden, labels).sum(), right
        if torch.is_grad_enabled():
            return WithGradient.apply(hidden, labels, of_chunk, length).sum(), right
        pieces = zip(hidden.split(length), labels.split(length), strict=True)
        return torch.cat([of_chunk(*piece) for piece in pieces]).sum(), right
