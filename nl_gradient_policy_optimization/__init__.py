"""Stage 3: optimise a policy with natural-language gradients (paper, section 3.5, algorithm 4)."""
