"""A trained natural-language reward model as a critic: its prompt, its decoding, and what constrains the decoding."""

from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription

__all__ = ["RewardModelCritic", "RewardModelDescription"]
