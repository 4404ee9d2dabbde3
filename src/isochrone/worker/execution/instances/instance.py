"""One model instance: an executable and the thread it computes on.

The loop hands a batch over through a ``SimpleQueue`` and gets it back by one ``call_soon_threadsafe``: 22 µs both ways,
where ``run_in_executor`` takes 62. Everything but the run itself happens on the loop's thread, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MILLISECOND, now_ns
from isochrone.worker.execution.instances.batch import Batch, BatchBuffers

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import Answer, Executable

log = structlog.get_logger(__name__)

#: Batches that are expected to take no longer are polled.
_POLLED_NS = 3 * MILLISECOND


class Instance:
    """Its state belongs to the loop's thread, except in ``_serve`` and the methods below it."""

    def __init__(
        self,
        executable: Executable,
        name: str,
        max_rows: int,
        cpus: tuple[int, ...],
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[Instance, Batch], None],
        number: int = 0,
    ) -> None:
        self.executable = executable
        #: Which of the configured instances it is.
        self.number = number
        #: The running batch and its start (monotonic ns).
        self.running: Batch | None = None
        self.busy_since = 0
        self.expected_end = 0
        #: The batch that started after ``running``, whose callback has not arrived yet.
        self.following: Batch | None = None
        self._following_takes = 0
        #: The batch that the thread may start without waiting for the loop. Loop and thread take it by an atomic pop.
        self._offered: deque[Batch] = deque()
        #: The batch whose answers come to the loop, without a thread.
        self._begun: Batch | None = None
        #: A run exceeded its limit: the instance gets no further work.
        self.abandoned = False
        #: Running requests of a decoupled model.
        self.streams = 0
        self._cpus = cpus
        self._loop = loop
        self._finished = finished
        self._buffers = BatchBuffers(max_rows) if executable.fresh_outputs and max_rows > 1 else None
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._name = name
        self._own_thread: threading.Thread | None = None
        #: Batches of an executable that overlaps, in the order of their launches; None ends the thread that collects.
        self._launched: SimpleQueue[Batch | None] = SimpleQueue()
        self._collecting: threading.Thread | None = None
        #: The batch for whose end the loop polls, and until when it does.
        self._polled: Batch | None = None
        self._poll_until = 0
        self._async_loop: asyncio.AbstractEventLoop | None = None
        self._async_thread: threading.Thread | None = None

    # On the loop's thread.

    def run_inline(self, batch: Batch) -> None:
        batch.run(self.executable, self._buffers)

    def start(self, batch: Batch, expected: int) -> None:
        """Runs a batch on the instance's thread, or without one; then ``finished`` is called on the loop."""
        self.running = batch
        self.busy_since = now_ns()
        self.expected_end = self.busy_since + expected
        if self.executable.begins_on_loop and batch.begin(self.executable, self._answers_came):
            self._begun = batch
            if self._own_thread is None:
                # A run that needs it, such as the one after a crash, shall not have to wait for it.
                self._start_thread()
        elif self.executable.overlaps:
            if self.executable.launches_quickly(batch.requests, batch.rows):
                # Nothing is before it, and a hand-over to a thread that sleeps takes as long as the launch.
                self._launch_here(batch, expected)
            else:
                self.submit(lambda: self._launch(batch))
        else:
            self.submit(lambda: self._run(batch))

    def start_behind(self, batch: Batch, expected: int) -> None:
        """Launches a batch behind the running one. Only of an executable that overlaps."""
        # Batches are collected in the order of their launches.
        self.stop_polling()
        self.offer_started(batch, expected)
        self.submit(lambda: self._launch(batch))

    def _launch_here(self, batch: Batch, expected: int) -> None:
        batch.launch(self.executable)
        if self._own_thread is None:
            self._start_thread()
        if not self.executable.polls or not 0 < expected <= _POLLED_NS:
            self._collect_later(batch)
            return
        # The loop looks for requests between two polls, and a thread that sleeps would take 0.1 ms to bring the answer.
        self._polled = batch
        self._poll_until = self.expected_end + expected + MILLISECOND
        self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        batch = self._polled
        if batch is None:
            return
        if batch.is_complete(self.executable):
            self._polled = None
            batch.was_polled = True
            batch.collect(self.executable)
            self._finished(self, batch)
        elif now_ns() < self._poll_until and not isinstance(batch.flight, BaseException):
            self._loop.call_soon(self._poll)
        else:
            self.stop_polling()

    def stop_polling(self) -> None:
        """The batch ends later than expected, another one follows it, or it was given up: the thread waits for it."""
        batch, self._polled = self._polled, None
        if batch is not None:
            self._collect_later(batch)

    @property
    def takes_offers(self) -> bool:
        """Whether the running batch is on the thread, which looks for the next one itself."""
        return self._begun is None

    def _answers_came(self, answers: list[Answer]) -> None:
        batch, self._begun = self._begun, None
        if batch is not None:
            batch.complete(answers)
            self._finished(self, batch)

    def offer(self, batch: Batch) -> None:
        """Offers a batch to start as soon as the running batch ends."""
        self._offered.append(batch)

    def withdraw_offer(self) -> bool:
        """Withdraws the offer; False: the batch has started."""
        try:
            self._offered.popleft()
        except IndexError:
            return False
        return True

    def offer_started(self, batch: Batch, expected: int) -> None:
        """The offered batch has started; the callback of the batch before it has not arrived yet."""
        self.following = batch
        self._following_takes = expected

    @property
    def free_at(self) -> int:
        """The expected end of all its work."""
        return self.expected_end + (self._following_takes if self.following is not None else 0)

    def ended(self, batch: Batch) -> None:
        """The running batch has ended; the batch that follows started at that instant."""
        # Including the hand-over to the thread: a plan must count it.
        batch.occupied = batch.compute_end - self.busy_since
        self.running, self.following = self.following, None
        if self.running is not None:
            self.busy_since = batch.compute_end
            self.expected_end = self.busy_since + self._following_takes
            for request in self.running.requests:
                request.dispatched = batch.compute_end

    def submit(self, job: Callable[[], None] | None) -> None:
        """``None`` ends the thread."""
        if self._own_thread is None:
            self._start_thread()
        self._inbox.put(job)

    def _start_thread(self) -> None:
        self._own_thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._own_thread.start()

    def close(self) -> None:
        """Ends the thread and frees the executable. It waits for the thread, so it must not run on the loop.

        The thread of an abandoned instance frees it when its run ends, if ever: that does not wait.
        """
        if self.abandoned:
            self.submit(None)
            return
        if self._own_thread is not None:
            self._inbox.put(None)
            self._own_thread.join()
        self._free()

    def _free(self) -> None:
        self._buffers = None
        try:
            self.executable.close()
        except Exception as error:
            # A model's close may raise. The other instances must still be freed.
            log.warning("an instance failed to close", instance=self._name, error=str(error))

    # On the instance's thread.

    def _serve(self) -> None:
        self._pin()
        while True:
            job = self._inbox.get()
            if job is None:
                break
            job()
        if self._collecting is not None:
            self._launched.put(None)
            self._collecting.join()
        if self._async_loop is not None and self._async_thread is not None:
            self._async_loop.call_soon_threadsafe(self._async_loop.stop)
            self._async_thread.join()
        if self.abandoned:
            self._free()

    def _pin(self) -> None:
        if self._cpus:
            try:
                os.sched_setaffinity(0, self._cpus)
            except OSError as error:  # the CPUs were available when the model was loaded
                log.warning("cannot pin an instance", instance=self._name, cpus=self._cpus, error=str(error))

    def _run(self, batch: Batch) -> None:
        following: Batch | None = batch
        while following is not None:
            batch = following
            batch.run(self.executable, self._buffers)
            following = self._next_offered(batch.compute_end)
            self.call_loop(self._finished, self, batch)

    def _launch(self, batch: Batch) -> None:
        batch.launch(self.executable)
        self._collect_later(batch)

    def _collect_later(self, batch: Batch) -> None:
        if self._collecting is None:
            self._collecting = threading.Thread(target=self._collect, name=f"{self._name}-collecting", daemon=True)
            self._collecting.start()
        self._launched.put(batch)

    def _collect(self) -> None:
        """On a thread of its own: it waits for the device while the instance's thread prepares the next batch."""
        self._pin()
        while (batch := self._launched.get()) is not None:
            batch.collect(self.executable)
            self.call_loop(self._finished, self, batch)

    def _next_offered(self, now: int) -> Batch | None:
        try:
            # A batch that would be late is left to the loop, which withdraws it and chooses again.
            return self._offered.popleft() if now <= self._offered[0].latest_start else None
        except IndexError:
            return None

    def call_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: the process is ending
            pass

    def async_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of an asynchronous model, on a thread of its own: many requests run at the same time."""
        if self._async_loop is None:
            loop = self._async_loop = asyncio.new_event_loop()

            def serve() -> None:
                self._pin()
                try:
                    loop.run_forever()
                    loop.run_until_complete(_cancel_tasks())
                    loop.run_until_complete(loop.shutdown_asyncgens())
                finally:
                    loop.close()

            self._async_thread = threading.Thread(target=serve, name=f"{self._name}-async", daemon=True)
            self._async_thread.start()
        return self._async_loop


async def _cancel_tasks() -> None:
    """Cancels the tasks of stopped requests and lets them clean up."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
