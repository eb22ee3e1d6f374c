"""The HTTP side of ``text2grad serve``: routes, the bearer token, limits on headers and bodies, health."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from text2grad.integrations.service import CriticService, RequestError


class PromptHeaders(AutoHTTPProtocol):
    """A connection that is closed where the headers of a request do not arrive in time.

    The server's limit on connections counts half-open ones, and uvicorn waits for them without end.
    """

    seconds = 10.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not answering and self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)


def make_app(
    service: CriticService,
    token: str | None = None,
    max_bytes: int = 8 << 20,
    body_timeout: float = 30.0,
    sign_of_life: float = 5.0,
) -> FastAPI:
    """The application.

    Args:
        token: what every request but ``/health`` must bear; None lets anyone in.
        max_bytes: of a request's body.
        body_timeout: seconds in which a body must have arrived.
        sign_of_life: seconds between two bytes of an answer that is not there yet.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    if token is not None:
        app.add_middleware(_guarded, token=token)

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        try:
            try:
                body = await asyncio.wait_for(_body(request, max_bytes), body_timeout)
            except TimeoutError:
                raise RequestError(408, f"the body did not arrive within {body_timeout:g} seconds") from None
            return _Answer(service.feedback(body), sign_of_life)
        except RequestError as error:
            headers = {"Retry-After": "1"} if error.status == 503 else None
            return JSONResponse({"error": str(error)}, error.status, headers)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse(service.about())

    return app


def _guarded(app: Any, token: str) -> Any:
    """The whole application, in which every request but ``/health`` needs the token."""

    async def guarded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        answer = app
        if scope["type"] == "http" and scope["path"] != "/health":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                answer = JSONResponse({"error": "no valid bearer token"}, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    return guarded


class _Answer(StreamingResponse):
    """JSON after as many spaces as the wait is long, so that neither the client nor a proxy takes the server for dead.

    The status is sent before the wait: what can fail the request as a whole has been checked by then. When the client
    hangs up the work is cancelled: a repeated request must not be computed twice.
    """

    def __init__(self, answers: asyncio.Future[list[dict[str, Any]]], sign_of_life: float):
        super().__init__(self._parts(sign_of_life), media_type="application/json")
        self.answers = answers

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answers.cancel()

    async def _parts(self, sign_of_life: float) -> AsyncIterator[bytes]:
        while not (await asyncio.wait({self.answers}, timeout=sign_of_life))[0]:
            yield b" "
        yield bytes(JSONResponse({"items": self.answers.result()}).body)


async def _body(request: Request, most: int) -> bytes:
    """The request's body, read no further than ``most`` bytes."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise RequestError(413, f"the body is longer than {most} bytes")
    return bytes(content)
