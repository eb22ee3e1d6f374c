"""The ground floor of Text2Grad: the method, and what two or more stages share.

``__all__`` names the public modules; what they offer keeps its meaning from one version to the next.
"""

import os
import sys

__version__ = "0.2.0.dev0"
__all__ = [
    "advantages",
    "critics",
    "errors",
    "feedback",
    "grounding",
    "integrations",
    "losses",
    "prompts",
    "records",
    "statistics",
    "tasks",
    "token_rewards",
    "token_text",
]

try:  # what no library after this one can do without
    os.getcwd()
    import tqdm  # noqa: F401
except (FileNotFoundError, ValueError) as problem:
    gone = isinstance(problem, FileNotFoundError)
    reason = "this folder was deleted; change to another" if gone else f"{problem}; unset that variable, TQDM_..."
    print(f"error: {reason}", file=sys.stderr)
    raise SystemExit(2) from None
