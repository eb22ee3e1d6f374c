"""What training minimises, as pure functions: PPO, KL to the reference, and a teacher that has read the critique."""

from text2grad.losses.kl import ESTIMATORS, KLController, KLKind, full_kl, sampled_kl
from text2grad.losses.ppo import nl_gradient, policy_kl, policy_loss, refinement_loss, sampler_correction, value_loss
from text2grad.losses.teacher import capped_ratio, divergence, gated, span_sums, weighted, with_tail

__all__ = [
    "ESTIMATORS",
    "KLController",
    "KLKind",
    "capped_ratio",
    "divergence",
    "full_kl",
    "gated",
    "nl_gradient",
    "policy_kl",
    "policy_loss",
    "refinement_loss",
    "sampled_kl",
    "sampler_correction",
    "span_sums",
    "value_loss",
    "weighted",
    "with_tail",
]
