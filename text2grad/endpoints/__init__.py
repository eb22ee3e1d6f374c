"""OpenAI-compatible endpoints: one client with pacing, a reply cache and a budget, and the judging of pairs."""


def is_endpoint(spec: str) -> bool:
    """Whether a text names an endpoint: ``openai:MODEL`` or ``http(s)://HOST:PORT/v1#MODEL``."""
    return spec.startswith(("openai:", "http://", "https://"))
