"""The value function V_ψ(x, y_<t): a small head on the policy's hidden states, trained beside it."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nl_gradient_policy_optimization.config import PolicyConfig

WEIGHTS, OPTIMIZER = "value_head.safetensors", "value_optimizer.pt"


class ValueHead(nn.Module):
    """V(x, y_<t) from the policy's hidden state, in float32.

    A linear map of the root-mean-square-normalised state that starts at zero. It reads the state without sending a
    gradient back: shared at one learning rate, its loss drowned the policy's. Scaling by 1/√H keeps one learning rate
    fit for models of every width.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., H] -> [...]``"""
        hidden = hidden.detach().to(self.weight.dtype)
        normalised = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normalised @ self.weight / self.weight.shape[0] ** 0.5 + self.bias


class ValueFunction:
    """The head and its optimiser.

    Every rank holds a whole copy (it is a vector): its gradients are summed by hand and clipped apart from the
    policy's, outside DDP and DeepSpeed, so adapters stay pure and the policy's clip is not used up by the value loss.
    """

    def __init__(self, hidden_size: int, config: PolicyConfig, device: torch.device, dtype: torch.dtype):
        self.head = ValueHead(hidden_size).to(device, dtype)
        self.max_grad_norm, self.learning_rate = 1.0, config.value_learning_rate
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.learning_rate, weight_decay=0.0)

    def step(self, reduce: Callable[[Tensor], Tensor]) -> None:
        """One optimiser step on the sum of all ranks' gradients."""
        for parameter in self.head.parameters():
            assert parameter.grad is not None
            parameter.grad = reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, with_optimizer: bool = True) -> None:
        save_file(self.head.state_dict(), folder / WEIGHTS)
        if with_optimizer:
            torch.save(self.optimizer.state_dict(), folder / OPTIMIZER)

    def load(self, folder: Path) -> None:
        self.head.load_state_dict(load_file(folder / WEIGHTS))
        self.optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate  # which may have been changed
