"""The ground floor of Text2Grad: the method, and what two or more stages share.

``__all__`` names the public modules; what they offer keeps its meaning from one version to the next.
"""

__version__ = "0.3.0.dev0"
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
