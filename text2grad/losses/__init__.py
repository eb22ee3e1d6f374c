"""What training minimises, as pure functions: PPO, KL to the reference, and a teacher that has read the critique.

The functions are in ``ppo.py``, ``kl.py`` and ``teacher.py``. This file imports no torch, so that settings can name a
kind of KL without loading it.
"""

from typing import Literal

KLKind = Literal["k1", "abs", "mse", "k3", "full"]
"""The estimators of ``kl.py``, and ``full``: the sum over the vocabulary."""
