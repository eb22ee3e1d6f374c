"""The settings of requests to an endpoint: one group of flags for every command that sends some."""

from dataclasses import dataclass, fields
from typing import Any

from text2grad.configs import check_values, setting


@dataclass(kw_only=True)
class Endpoint:
    """How an OpenAI-compatible API is asked."""

    concurrency: int = setting(8, "requests in flight", above=0)
    requests_per_minute: float | None = setting(None, "ask no faster", above=0)
    tokens_per_minute: float | None = setting(None, "ask no faster", above=0)
    max_cost_usd: float | None = setting(None, "spend no more than this, earlier runs included")
    prices: str | None = setting(None, "another price table than text2grad/endpoints/prices.yaml")
    timeout: float = setting(120.0, "seconds of silence after which a request is sent again", above=0)
    retries: int = setting(6, "how often a request is sent again", at_least=0)

    def __post_init__(self) -> None:
        check_values(self)

    def client_options(self) -> dict[str, Any]:
        """For :class:`~text2grad.endpoints.client.ChatClient`."""
        return {each.name: getattr(self, each.name) for each in fields(Endpoint)}
