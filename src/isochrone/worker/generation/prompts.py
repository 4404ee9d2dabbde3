"""The thread that makes tokens of prompts, so that a long one delays neither steps nor the event loop.

Prompts wait in the order in which the scheduler would take them: priority, then the deadline of the first token. The
time that they take is learned, so that admission can count it. A request that ends while its prompt waits leaves.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError, ModelFailed
from isochrone.worker.generation.answers.job import Job

if TYPE_CHECKING:
    from isochrone.worker.backends.generative import Tokenizer

#: (job, text and tokens, or the error): called on the thread.
Prepared = Callable[[Job, "tuple[str, list[int]] | IsochroneError"], None]

#: Threads of several models that tokenise at the same time: more would take the CPUs from each other and from the loop.
_TURNS = threading.BoundedSemaphore(max(1, len(os.sched_getaffinity(0))))
#: ns per character before the first prompt, and the characters with which this is believed.
_ASSUMED = 250.0
_BELIEVED = 10_000
#: What is left of earlier measurements with each new one.
_KEEP = 0.9


class _Waiting(NamedTuple):
    order: tuple[int, int, int]
    job: Job
    tokenizer: Tokenizer
    prepared: Prepared


class PromptThread:
    """The thread of one model version. Other methods than ``close`` do not wait for it."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        # What the lock guards: a heap, the jobs in it with their characters, the sums of these by priority, and what is
        # being tokenised.
        self._heap: list[_Waiting] = []
        self._sizes: dict[Job, int] = {}
        self._sums: Counter[int] = Counter()
        self._running = self._running_since = 0
        self._is_closing = False
        self._numbers = count()
        #: Time and characters of the latest prompts: a mean of quotients would be that of the shortest ones.
        self._took, self._characters = _ASSUMED * _BELIEVED, float(_BELIEVED)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, tokenizer: Tokenizer, prepared: Prepared) -> None:
        with self._changed:
            order = (job.priority, job.turn_deadline, next(self._numbers))
            heapq.heappush(self._heap, _Waiting(order, job, tokenizer, prepared))
            self._sizes[job] = job.wanted.size
            self._sums[job.priority] += job.wanted.size
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """A request has ended: its prompt is not tokenised, unless that has begun."""
        with self._changed:
            # The heap keeps the entry until its turn comes.
            self._sums[job.priority] -= self._sizes.pop(job, 0)

    def expired(self, now: int) -> list[Job]:
        """Requests whose prompts wait, though their first tokens were due before."""
        with self._changed:
            return [job for job in self._sizes if job.first_deadline < now]

    def expected_ns(self, size: int, priority: int, now: int) -> int:
        """ns until a prompt of so many characters is tokenised, behind all that wait with its priority or a higher."""
        with self._changed:
            each = self._took / self._characters
            begun, ran = 0.0, now - self._running_since
            if self._running:
                # What has taken longer than it should will go on for as long again.
                expected = self._running * each
                begun = expected - ran if ran < expected else ran
            ahead = sum(waiting for level, waiting in self._sums.items() if level <= priority)
            return round((ahead + size) * each + begun)

    def close(self) -> None:
        """Waits for the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            self._prepare(item)
            # Nothing is kept of it while the thread waits.
            del item

    def _next(self) -> _Waiting | None:
        with self._changed:
            while True:
                self._running = 0
                while self._heap:
                    item = heapq.heappop(self._heap)
                    size = self._sizes.pop(item.job, None)
                    if size is not None:
                        self._sums[item.job.priority] -= size
                        self._running, self._running_since = size, now_ns()
                        return item
                if self._is_closing:
                    return None
                self._changed.wait()

    def _prepare(self, item: _Waiting) -> None:
        job = item.job
        if job.request.cancelled or job.is_over:
            item.prepared(job, Cancelled("the request was cancelled"))
            return
        now = now_ns()
        if job.first_deadline < now:
            item.prepared(job, late_prompt(job, now))
            return
        with _TURNS:
            prompt = _prompt(job, item.tokenizer)
        # With the wait for a turn: those behind wait for it, too.
        took = now_ns() - now
        with self._changed:
            self._took = _KEEP * self._took + took
            self._characters = _KEEP * self._characters + max(1, job.wanted.size)
        item.prepared(job, prompt)


def late_prompt(job: Job, now: int) -> IsochroneError:
    """The error of a request whose first token was due before its prompt's turn came."""
    late_ms = (now - job.first_deadline) / MILLISECOND
    return DeadlineExceeded(
        f"the deadline of the first token passed {late_ms:.1f} ms ago, before its prompt was tokenised"
    ).not_begun()


def _prompt(job: Job, tokenizer: Tokenizer) -> tuple[str, list[int]] | IsochroneError:
    try:
        return job.wanted.prompt(tokenizer)
    except IsochroneError as error:
        return error
    except BaseException as error:
        return ModelFailed(f"the tokenizer failed: {type(error).__name__}: {error}")
