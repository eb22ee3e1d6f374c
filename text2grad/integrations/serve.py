"""Hold a critic behind HTTP: one reward model (or program, or LLM) for any number of training nodes.

text2grad serve --task slf5k --critic runs/reward_model
python -m text2grad.integrations.serve --task slf5k --critic runs/reward_model
"""

import logging
import os
import signal
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from text2grad.configs import TaskConfig, parse, setting
from text2grad.critics import Critic, is_served, load_critic
from text2grad.critics.served import TOKEN
from text2grad.critics.settings import CriticChoice
from text2grad.endpoints import is_endpoint
from text2grad.errors import InputError, command
from text2grad.integrations.service import CriticService, Limits
from text2grad.tasks import Task, get_task


@dataclass(kw_only=True)
class ServeConfig(CriticChoice):
    """Where the critic is held, and how much it takes on."""

    host: str = setting("127.0.0.1", "address to listen on; others than this machine's own need a token")
    port: int = setting(8765, "port to listen on; 0 takes a free one", at_least=0, below=2**16)
    window: float = setting(0.02, "seconds that a batch waits for more items after its first one")
    batch_size: int = setting(
        0, "items in one call of the critic; 0: 64, or --critic_batch_size for a reward model's folder", at_least=0
    )
    max_items: int = setting(256, "items of one request", above=0)
    max_characters: int = setting(100_000, "characters of a prompt or a response", above=0)
    max_megabytes: float = setting(8.0, "size of a request's body", above=0)
    max_waiting: int = setting(2048, "items in flight; requests beyond that are told to come again", above=0)
    max_connections: int = setting(512, "open connections; others are told to come again", above=0)
    timeout: float = setting(300.0, "seconds without an answer of the critic after which items get an error", above=0)


def make_critic(task: Task, config: ServeConfig) -> Critic:
    if is_served(config.critic):
        raise InputError(f"--critic {config.critic}: is served already; name that address to its users")
    if is_endpoint(config.critic):
        return config.load_critic(task, constrained=config.critic_constrained, **config.client_options())
    options = {"batch_size": config.critic_batch_size, "constrained": config.critic_constrained}
    return load_critic(config.critic, task, **(options if Path(config.critic).is_dir() else {}))


def checked_token(host: str) -> str | None:
    """The bearer token of the environment.

    Raises:
        InputError: it cannot be sent in a header, or there is none where other machines can reach the server.
    """
    token = os.environ.get(TOKEN) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError(f"{TOKEN}: may contain only printable ASCII without spaces; choose another token")
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if token is None and not local:
        raise InputError(f"--host {host}: other machines can reach it; set {TOKEN} to a secret, here and on them")
    return token


def address_of(host: str, port: int) -> str:
    """What clients are told: a server on all addresses is reached by this machine's name."""
    host = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(task: Task, config: ServeConfig) -> None:
    """Serve until SIGINT or SIGTERM; requests that are being answered then are finished."""
    try:
        import uvicorn

        from text2grad.integrations.http_app import PromptHeaders, make_app
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs FastAPI and uvicorn ({error}); run `pip install 'text2grad[serve]'`") from None
    token = checked_token(config.host)
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listening = socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"--host {config.host} --port {config.port}: {error.strerror}; choose another") from None
    limits = Limits(config.max_items, config.max_characters, config.max_waiting, config.timeout)
    # A reward model's batches are the clients' too: what is decoded together is answered then, not 64 items later.
    batch_size = config.batch_size or (config.critic_batch_size if Path(config.critic).is_dir() else 64)
    service = CriticService(make_critic(task, config), task, limits, window=config.window, batch_size=batch_size)
    app = make_app(service, token, int(config.max_megabytes * 2**20))
    quiet = {"log_level": "warning", "access_log": False, "server_header": False}
    settings = uvicorn.Config(app, http=PromptHeaders, limit_concurrency=config.max_connections, **quiet)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn passes on what it caught, once it has ended cleanly
        signal.signal(number, lambda *_: None)
    address = address_of(config.host, listening.getsockname()[1])
    print(f"{task.name}: {service.about()['critic']} on {address}; use it with --critic served:{address}", flush=True)
    server = uvicorn.Server(settings)
    server.run(sockets=[listening])
    if server.force_exit:
        print("stopped at once; requests that were being answered were dropped", flush=True)
        raise SystemExit(130)
    print("stopped; every request was answered", flush=True)


@command
def main() -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    chosen, config = parse(TaskConfig, ServeConfig)
    serve(get_task(chosen.task), config)


if __name__ == "__main__":
    main()
