"""Every reply that was paid for, on disk before it is used: a killed run asks nothing twice and knows its spending."""

import math
import threading
from pathlib import Path
from typing import Any

from text2grad.endpoints.spending import Usage
from text2grad.journal import LockedLog

_PATIENCE = 600.0  # seconds that a paid reply waits for room on a full disk


class ReplyCache:
    """An append-only JSONL file of requests and replies.

    Lines, in the order of events: ``{"sent": n, "bound": usd}`` before request n goes out, then one of
    ``{"reply": n, "key", "scope", "value"}`` and ``{"refused": n}`` (an error answer, which is not billed). A request
    with neither was lost, by a kill or a broken connection, and may have been billed: ``lost_usd`` is the most that
    can have cost. ``{"void": scope}`` retires a scope's replies, or only
    that of its ``"key"``: they led nowhere, so a later try asks again.

    Replies of batches have no number (null): nothing notes their sending here.

    Attributes:
        usage: tokens and cost of all replies in the file.
        lost_usd: the upper bound of what lost requests cost.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.usage = Usage()
        self.lost_usd = 0.0
        self._replies: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, set[str]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._log = LockedLog(path, to_disk=False)
        self._read()

    def _read(self) -> None:
        open_bounds: dict[int, float] = {}
        for number, row in enumerate(self._log.rows(), 1):
            try:
                if "sent" in row:
                    if not isinstance(row["sent"], int) or not math.isfinite(row["bound"]):
                        raise TypeError("the request is no number, or has no bound")
                    open_bounds[row["sent"]] = float(row["bound"])
                    self._next = max(self._next, row["sent"] + 1)
                elif "reply" in row:
                    open_bounds.pop(row["reply"], None)
                    if not isinstance(row["value"]["text"], str):
                        raise TypeError("the reply is not a text")
                    self._remember(row["key"], row["scope"], row["value"])
                elif "refused" in row:
                    open_bounds.pop(row["refused"], None)
                else:
                    self._forget(row["void"], row.get("key"))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise self._log.broken(number) from None
        self.lost_usd = sum(open_bounds.values())

    def get(self, key: str) -> dict[str, Any] | None:
        """The reply to the request of that key, where there is one."""
        return self._replies.get(key)

    def sent(self, bound: float) -> int:
        """Note a request that is about to go out; returns its number."""
        self._log.check_room()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._log.append({"sent": number, "bound": bound})
        return number

    def replied(self, number: int | None, key: str, scope: str, value: dict[str, Any]) -> None:
        """Keep a reply: a JSON object whose ``usage`` is that of a :class:`~text2grad.endpoints.spending.Usage`."""
        with self._lock:
            row = {"reply": number, "key": key, "scope": scope, "value": value}
            self._log.append(row, patience=_PATIENCE)
            self._remember(key, scope, value)

    def refused(self, number: int) -> None:
        """The server answered with an error."""
        with self._lock:
            self._log.append({"refused": number})

    def void(self, scope: str, key: str | None = None) -> None:
        """Use a scope's replies no more, or only that of one key (their cost stays counted)."""
        with self._lock:
            known = self._keys.get(scope, ())
            if known if key is None else key in known:
                self._log.append({"void": scope} if key is None else {"void": scope, "key": key})
                self._forget(scope, key)

    def close(self) -> None:
        self._log.close()

    def _remember(self, key: str, scope: str, value: dict[str, Any]) -> None:
        self._replies[key] = value
        self._keys.setdefault(scope, set()).add(key)
        self.usage += Usage(**value["usage"])

    def _forget(self, scope: str, key: str | None = None) -> None:
        known = self._keys.get(scope, set())
        for each in list(known) if key is None else [key]:
            self._replies.pop(each, None)
            known.discard(each)
