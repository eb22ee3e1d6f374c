"""TRL's SFTTrainer, but on a CPU it scores only the positions that have a loss."""

import torch
from torch.nn.functional import cross_entropy
from trl import SFTTrainer

from text2grad.critics.reward_model.examples import NO_LOSS


class RewardTrainer(SFTTrainer):
    """On a GPU this is ``SFTTrainer``, whose Triton kernel scores z alone.

    Without Triton it projects every position onto the vocabulary, prompt included, which takes longer than all layers
    of a small model together. Here the language-model head sees the columns in which some row of the batch has a
    label; the loss is the same. So does it on any device where rows hold several responses (``rows.py``). Another loss
    than the plain one, and packing, are left to TRL.
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
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            position_ids=inputs.get("position_ids"),  # where a row holds several responses
            use_cache=False,
            logits_to_keep=columns,
        )
        logits, labels = outputs.logits.float(), labels[:, columns]
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, reduction="sum")
        known = labels != NO_LOSS
        self._record("train" if model.training else "eval", logits.detach(), labels, known)
        if num_items_in_batch is None:
            return loss / known.sum()
        # num_items_in_batch counts the labels of all ranks, whose gradients are averaged afterwards.
        scale = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return loss * scale / num_items_in_batch

    def _record(self, mode: str, logits: torch.Tensor, labels: torch.Tensor, known: torch.Tensor) -> None:
        counts = torch.stack([(logits.argmax(-1) == labels)[known].sum(), known.sum()])[None]
        right, total = self.accelerator.gather(counts).sum(dim=0).tolist()
        self._metrics[mode]["mean_token_accuracy"].append(right / max(1, total))
