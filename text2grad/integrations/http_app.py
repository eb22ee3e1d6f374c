"""The HTTP side of ``text2grad serve``: routes, the bearer token, limits on headers and bodies, health."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from text2grad.integrations.service import CriticService, RequestError, logged

# The types of ASGI, the interface between a server and an application (asgi.readthedocs.io).
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


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

    def connection_lost(self, error: Exception | None) -> None:
        self._stop()
        super().connection_lost(error)

    def _watch(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


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
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    app.add_middleware(_Guard, token=token)

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        try:
            try:
                body = await asyncio.wait_for(_body(request, max_bytes), body_timeout)
            except TimeoutError:
                raise RequestError(408, f"the body did not arrive within {body_timeout:g} seconds") from None
            working = _While(request, service.feedback(body))
            if await working.ends_within(sign_of_life):
                return JSONResponse(working.result())
            return _SlowAnswer(working, sign_of_life)
        except RequestError as error:
            headers = {"Retry-After": "1"} if error.status == 503 else None
            return JSONResponse({"error": str(error)}, error.status, headers)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse(service.about())

    return app


class _Guard:
    """Around the whole application: requests need the token, and errors are JSON too."""

    def __init__(self, app: ASGIApp, token: str | None):
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] != "/health" and not _admitted(scope, self.token):
            refused = JSONResponse({"error": "no valid bearer token"}, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
            return
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception:  # the client gets its number in the log
            number = logged("request")
            if begun:  # without its end the client asks again
                raise
            broken = {"error": f"the server broke down; its log has the reason under {number}"}
            await JSONResponse(broken, 500)(scope, receive, send)


def _admitted(scope: Scope, token: str | None) -> bool:
    if token is None:
        return True
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


class _While:
    """Work for a client. It is cancelled when the client hangs up: a repeated request must not be computed twice."""

    def __init__(self, request: Request, work: Coroutine[Any, Any, dict[str, Any]]):
        self._working, self._gone = asyncio.create_task(work), asyncio.create_task(_hung_up(request))

    async def ends_within(self, seconds: float) -> bool:
        """Whether there is a result.

        Raises:
            RequestError: the client hung up.
        """
        try:
            await asyncio.wait({self._working, self._gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.end()
            raise
        if not self._working.done() and self._gone.done():
            self.end()
            await asyncio.wait({self._working})  # withdrawn from the critic's queue by now
            raise RequestError(499, "the client hung up")
        return self._working.done()

    def result(self) -> dict[str, Any]:
        self.end()
        return self._working.result()

    def end(self) -> None:
        self._gone.cancel()
        self._working.cancel()


class _SlowAnswer(JSONResponse):
    """JSON after as many spaces as the wait is long, so that neither the client nor a proxy takes the server for dead.

    The status is sent before the wait: what can fail the request as a whole has been checked by then.
    """

    def __init__(self, working: _While, sign_of_life: float):
        super().__init__(None)
        del self.headers["content-length"]
        self.working, self.sign_of_life = working, sign_of_life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while True:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                if await self.working.ends_within(self.sign_of_life):
                    break
            await send({"type": "http.response.body", "body": self.render(self.working.result())})
        except RequestError:  # the client is gone
            return
        finally:
            self.working.end()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, most: int) -> bytes:
    """The request's body, read no further than ``most`` bytes."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise RequestError(413, f"the body is longer than {most} bytes")
    return bytes(content)
