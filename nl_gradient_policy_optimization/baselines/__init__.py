"""What Text2Grad is compared with: SFT, a scalar reward and PPO on it, DPO, PRM-PPO, reflection (appendix N)."""

LAUNCHER = "bash nl_gradient_policy_optimization/baselines/run.sh"
"""How each of them is started, from the repository's root."""
