"""What requests to an API cost, and a budget that stops them in time.

The prices are a dated table of our own, checked against the price map of litellm 1.109.1. litellm itself would be a
40 MB dependency for these few lines, and its budget counts a request after it was paid, where ours stops before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from text2grad.errors import InputError, StopRunError
from text2grad.safety.gate import regular

log = logging.getLogger(__name__)

_PRICES = Path(__file__).with_name("prices.yaml")
_OLD_AFTER_DAYS = 365


@dataclass(frozen=True)
class Price:
    """USD per million tokens; all zero for a model that the price table does not list."""

    input: float = 0.0
    cached_input: float = 0.0
    output: float = 0.0
    listed: bool = False

    def of(self, usage: Usage) -> float:
        """USD for counted tokens."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.input + usage.cached_tokens * self.cached_input + usage.completion_tokens * self.output
        return total / 1e6

    def bound(self, request_bytes: int, max_tokens: int) -> float:
        """USD that a request can cost at most: no tokenizer makes more tokens than there are bytes."""
        return (request_bytes * self.input + max_tokens * self.output) / 1e6


def load_price(model: str, path: str | Path | None = None, batch: bool = False) -> Price:
    """The price of a model by the first pattern in the table that matches its name.

    Args:
        path: another table than the package's ``prices.yaml``.
        batch: with the Batch API's discount.
    """
    path = Path(path or _PRICES)
    try:
        table = yaml.safe_load(regular(path).read_text(encoding="utf-8"))
        share = float(table["batch_discount"]) if batch else 1.0
        for pattern, row in table["models"].items():
            if fnmatchcase(model, pattern):
                if (as_of := table.get("as_of")) is not None and (date.today() - as_of).days > _OLD_AFTER_DAYS:
                    advice = "compare them with the provider's, then correct them and as_of"
                    log.warning("%s: the prices are of %s; %s", path, as_of, advice)
                values = {name: share * float(row[name]) for name in ("input", "cached_input", "output")}
                return Price(**values, listed=True)
    except OSError as error:
        raise InputError(f"{path}: the price table cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a price table like {_PRICES.name}: {' '.join(str(error).split())}") from None
    return Price()


@dataclass
class Usage:
    """Tokens and requests as the server counted them; ``uncounted`` requests came back without any count."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    uncounted: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_dict(self) -> dict[str, Any]:
        """For records and reports; ``uncounted`` and ``cached_tokens`` only where there are any."""
        value = {**asdict(self), "cost_usd": round(self.cost_usd, 8)}
        return {name: item for name, item in value.items() if item or name not in ("uncounted", "cached_tokens")}


class Budget:
    """A limit on spending that holds whatever the requests in flight turn out to cost.

    A request is sent only when its upper bound still fits, added to what was spent, what other requests in flight may
    cost, and what lost requests (no answer came, yet they may have been billed) may have cost.
    """

    def __init__(self, limit: float | None, spent: float = 0.0, lost: float = 0.0):
        self.limit, self.spent, self.lost = limit, spent, lost
        self._reserved = 0.0
        self._flying = 0
        self._changed = threading.Condition()

    def reserve(self, bound: float, stopped: threading.Event | None = None) -> None:
        """Wait until ``bound`` fits; ``StopRunError`` where it cannot fit any more (or ``stopped`` is set)."""
        with self._changed:
            while not self.fits(bound):
                if stopped is not None and stopped.is_set():
                    raise StopRunError("stopped")
                if not self._flying:
                    raise StopRunError(
                        f"the next request could cost ${bound:.4f}; ${self.spent + self.lost:.4f} of the budget of "
                        f"${self.limit:.4f} is spent. Run again with a larger --max_cost_usd or --critic_max_cost_usd "
                        "(whichever was set) to continue"
                    )
                self._changed.wait(0.2)
            self._reserved += bound
            self._flying += 1

    def fits(self, bound: float) -> bool:
        """Whether ``bound`` fits as things are now."""
        return self.limit is None or self.spent + self.lost + self._reserved + bound <= self.limit

    def settle(self, bound: float, cost: float = 0.0, lost: bool = False) -> None:
        """A reserved request has ended: it cost ``cost``, or, where ``lost``, perhaps all of its bound."""
        with self._changed:
            self._flying -= 1
            self._reserved = self._reserved - bound if self._flying else 0.0
            self.spent += cost
            self.lost += bound if lost else 0.0
            self._changed.notify_all()


def joined(budgets: Sequence[Budget]) -> Budget:
    """One budget in the place of several: the lowest limit, for what all of them have spent and will spend."""
    limits = [each.limit for each in budgets if each.limit is not None]
    return Budget(min(limits, default=None), sum(each.spent for each in budgets), sum(each.lost for each in budgets))
