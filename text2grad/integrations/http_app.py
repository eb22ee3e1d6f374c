"""The HTTP side of ``text2grad serve``: routes, the bearer token, limits on bodies, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from text2grad.integrations.service import CriticService, RequestError, logged

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class RequestMetrics:
    """Counts and times of requests, in the text form that Prometheus reads."""

    def __init__(self, service: CriticService):
        self.service = service
        self.requests: Counter[tuple[str, int]] = Counter()
        self.buckets: Counter[float] = Counter()
        self.seconds = 0.0

    def note(self, path: str, status: int, seconds: float) -> None:
        self.requests[path, status] += 1
        self.seconds += seconds
        for bound in _BUCKETS:
            self.buckets[bound] += seconds <= bound

    def text(self) -> str:
        count = sum(self.requests.values())
        lines = ["# TYPE text2grad_requests_total counter"]
        lines += [
            f'text2grad_requests_total{{path="{path}",status="{status}"}} {number}'
            for (path, status), number in sorted(self.requests.items())
        ]
        lines += ["# TYPE text2grad_request_seconds histogram"]
        lines += [f'text2grad_request_seconds_bucket{{le="{bound}"}} {self.buckets[bound]}' for bound in _BUCKETS]
        lines += [f'text2grad_request_seconds_bucket{{le="+Inf"}} {count}']
        lines += [f"text2grad_request_seconds_sum {self.seconds:.6f}", f"text2grad_request_seconds_count {count}"]
        lines += ["# TYPE text2grad_items_total counter"]
        lines += [
            f'text2grad_items_total{{outcome="{outcome}"}} {self.service.items[outcome]}'
            for outcome in ("answered", "failed", "broken")
        ]
        lines += ["# TYPE text2grad_batches_total counter", f"text2grad_batches_total {self.service.queue.batches}"]
        lines += ["# TYPE text2grad_items_waiting gauge", f"text2grad_items_waiting {self.service.waiting}"]
        return "\n".join(lines) + "\n"


def make_app(
    service: CriticService, token: str | None = None, max_bytes: int = 8 << 20, body_timeout: float = 30.0
) -> FastAPI:
    """The application.

    Args:
        token: what every request but ``/health`` must bear; None lets anyone in.
        max_bytes: of a request's body.
        body_timeout: seconds in which a body must have arrived.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    metrics = RequestMetrics(service)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        started, path = time.monotonic(), request.url.path
        if path != "/health" and not _admitted(request, token):
            return JSONResponse({"error": "no valid bearer token"}, 401, {"WWW-Authenticate": "Bearer"})
        try:
            response = await call_next(request)
        except Exception:  # noqa: BLE001 (the metrics count it, and the client gets its number in the log)
            number = logged("request")
            response = JSONResponse({"error": f"the server broke down; its log has the reason under {number}"}, 500)
        known = path if path in ("/v1/feedback", "/v1/token_rewards") else "other"
        metrics.note(known, response.status_code, time.monotonic() - started)
        return response

    async def answered(request: Request, work: Callable[[bytes], Coroutine[Any, Any, dict[str, Any]]]) -> Response:
        try:
            try:
                body = await asyncio.wait_for(_body(request, max_bytes), body_timeout)
            except TimeoutError:
                raise RequestError(408, f"the body did not arrive within {body_timeout:g} seconds") from None
            return JSONResponse(await _while_connected(request, work(body)))
        except RequestError as error:
            headers = {"Retry-After": "1"} if error.status == 503 else None
            return JSONResponse({"error": str(error)}, error.status, headers)

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        return await answered(request, service.feedback)

    @app.post("/v1/token_rewards")
    async def token_rewards(request: Request) -> Response:
        return await answered(request, service.token_rewards)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse(service.about())

    @app.get("/metrics")
    async def measured() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return app


def _admitted(request: Request, token: str | None) -> bool:
    if token is None:
        return True
    given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


async def _while_connected(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` gives. It is cancelled when the client hangs up: a repeated request must not be computed twice."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError(499, "the client hung up")
        return working.result()
    finally:
        gone.cancel()
        working.cancel()


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
