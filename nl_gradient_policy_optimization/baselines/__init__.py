"""What Text2Grad is compared with: SFT, a scalar reward and PPO on it, DPO, PRM-PPO, reflection (appendix N)."""
