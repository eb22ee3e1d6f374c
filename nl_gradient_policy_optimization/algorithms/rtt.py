"""RTT: a response's outcome against those of its prompt, and each token's δ against those of its own response.

Source: Rubrics to Tokens (arXiv 2604.02795), A_it = A_response + α·A_token. As published the end token counts in the
second term, which makes going on worth more than ending where most is praised. It is left out here, unless
``--rtt_end_token true``.
"""

from dataclasses import dataclass

from torch import Tensor

from nl_gradient_policy_optimization.algorithms.grpo import GRPO, Outcome
from nl_gradient_policy_optimization.batch import Batch
from text2grad.advantages import before_end, centred, per_response
from text2grad.configs import setting


@dataclass
class RTT(GRPO):
    """GRPO on whole responses, with the spans as a second term that sums to 0 in each response."""

    name = "rtt"
    eps = 1e-6  # as in the authors' code

    outcome: Outcome = setting("verdict", "as in grpo")
    rtt_alpha: float = setting(0.5, "rtt: weight α of a token's advantage within its response", at_least=0)
    rtt_end_token: bool = setting(False, "rtt: the end token counts in the second term, as published")

    def advantages(self, batch: Batch) -> Tensor:
        inside = batch.mask if self.rtt_end_token else before_end(batch.mask)
        tokens = centred(batch.deltas, inside, std_eps=self.eps)
        return per_response(self.relative(batch), batch.mask) + self.rtt_alpha * tokens
