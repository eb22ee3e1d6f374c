"""One critic, many callers that ask one at a time: what comes within a short window is asked together."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from text2grad.critics import Critic
from text2grad.critics.asking import Complete, Question, ask
from text2grad.errors import EndpointError, StopRunError
from text2grad.feedback import Feedback, FeedbackError


class CriticQueue:
    """Asks a critic about batches, in its own threads. Callers get a future each, from any thread or event loop.

    A critic that raises on a batch is asked about each question by itself, so that one bad response costs no other
    its feedback. The future of a question that fails even so holds the exception.

    Args:
        window: seconds that a batch waits for more questions after its first one.
        batch_size: questions in one batch at most.
        complete: what a record needs before the critic sees it (``log_completion``).

    Attributes:
        last_answer: when the critic last answered, by the monotonic clock.
    """

    def __init__(self, critic: Critic, window: float = 0.02, batch_size: int = 64, complete: Complete = list):
        self.critic, self.window, self.batch_size, self.complete = critic, window, batch_size, complete
        self.last_answer = time.monotonic()
        self._waiting: queue.SimpleQueue[tuple[Question, Future] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        count = 4 if getattr(critic, "remote", False) else 1  # batches in flight: a model in this process takes one
        names = (f"critic-{number}" for number in range(count))
        self._threads = [threading.Thread(target=self._run, daemon=True, name=name) for name in names]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question) -> Future[Feedback | FeedbackError]:
        """The feedback to come. A future that is cancelled before its batch begins is never asked about."""
        future: Future[Feedback | FeedbackError] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the queue is closed")
            self._waiting.put((question, future))
        return future

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, finish what was asked, end the threads."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._waiting.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = self._collect(first)
            live = [(question, future) for question, future in batch if future.set_running_or_notify_cancel()]
            if live:
                self._answer(live)
            if last:
                return

    def _collect(self, first: tuple[Question, Future]) -> tuple[list[tuple[Question, Future]], bool]:
        """The questions of one batch, and whether the queue was closed after them."""
        batch, end = [first], time.monotonic() + self.window
        while len(batch) < self.batch_size:
            try:
                more = self._waiting.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if more is None:
                return batch, True
            batch.append(more)
        return batch, False

    def _answer(self, batch: Sequence[tuple[Question, Future]]) -> None:
        try:
            given = ask(self.critic, [question for question, _ in batch], self.complete)
        except BaseException as raised:  # noqa: BLE001 (it reaches whoever asked, and this thread goes on)
            error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
            self.last_answer = time.monotonic()
            nobody = isinstance(error, StopRunError | EndpointError)  # no question fares better alone
            if len(batch) == 1 or nobody:
                for _, future in batch:
                    future.set_exception(error)
                return
            for one in batch:
                self._answer([one])
            return
        self.last_answer = time.monotonic()
        for (_, future), feedback in zip(batch, given, strict=True):
            future.set_result(feedback)
