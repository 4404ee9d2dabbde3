"""Runs one worker inside the caller's process: on a thread of its own, or on the main thread.

The main thread is better where it is free: there the worker receives signals, and can interrupt a model that hangs.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

import uvloop

from isochrone.errors import ConfigError, ModelFailed
from isochrone.in_process.process_state import process_state
from isochrone.in_process.repository import GivenModels
from isochrone.models.repository.description import ModelDescription
from isochrone.stop_signals import stop_signals
from isochrone.worker.server.failures import PortTaken, StartFailed
from isochrone.worker.server.server import Worker
from isochrone.worker.server.settings import ServeSettings

_CHECK_SECONDS = 0.1


class WorkerThread:
    """One worker. ``on_ready`` is called on the worker's thread, with the ports by service."""

    def __init__(
        self,
        settings: ServeSettings,
        descriptions: Sequence[ModelDescription],
        on_ready: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._settings = settings
        self._descriptions: Sequence[ModelDescription] = descriptions
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._settled = threading.Event()
        self._failure: BaseException | None = None
        #: Set when the worker has stopped and everything is freed.
        self.ended = threading.Event()

    def run_here(self) -> None:
        """Serves on this thread, the main one, until a stop signal."""
        before = {number: signal.getsignal(number) for number in stop_signals()}
        try:
            uvloop.run(self._serve(on_signals=True))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.ended.set()
        self._raise_failure()

    def start(self) -> None:
        """Returns when the models are ready; raises why they are not."""
        # Not a daemon: the interpreter waits for it, and ``_watch_main_thread`` ends it.
        self._thread = threading.Thread(target=self._run, name="isochrone-worker")
        self._thread.start()
        try:
            self._settled.wait()
        except BaseException:
            self.stop()
            raise
        self._raise_failure()

    def run(self, *, on_signals: bool) -> None:
        """``start``, then waits until the worker has stopped: by ``stop``, or by a stop signal."""
        before = {}
        try:
            # Before the worker answers: nobody may find it ready and stop it in vain. Handlers run while this thread
            # waits for a lock. A notebook interrupts a cell with SIGINT.
            for number in stop_signals() if on_signals else ():
                before[number] = signal.signal(number, lambda *_: self.request_stop())
            self.start()
            self.ended.wait()
            self._raise_failure()
        finally:
            self.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Finishes in-flight requests, frees the models and ends the thread. May be called again."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def request_stop(self) -> None:
        """Makes the worker stop; returns at once."""
        self._stopping = True
        loop, worker = self._loop, self._worker
        if loop is not None and worker is not None:
            try:
                loop.call_soon_threadsafe(worker.request_stop)
            except RuntimeError:  # it is closed: the worker has stopped
                pass

    def _run(self) -> None:
        try:
            uvloop.run(self._serve(on_signals=False))
        except BaseException as error:
            self._failure = error
        finally:
            self.ended.set()
            self._settled.set()

    async def _serve(self, *, on_signals: bool) -> None:
        log_settings = process_state.enter()
        try:
            worker = Worker(
                self._settings, log_settings, (_Companion(self),), repository=GivenModels(self._descriptions)
            )
            self._worker, self._loop = worker, asyncio.get_running_loop()
            if self._stopping:
                return
            try:
                await worker.run(on_signals=on_signals)
            except PortTaken as taken:
                # The event loop puts the address before the reason.
                reason = taken.reason.rpartition(": ")[2]
                expected, given = "a free port (0 chooses one)", f"{taken.port} on {taken.host}: {reason}"
                self._failure = ConfigError("isochrone.serve", f"{taken.service}_port", expected, given)
            except StartFailed as failed:
                known = (worker.catalog.failure(each.name) for each in self._descriptions)
                self._failure = ModelFailed("; ".join(filter(None, known)) or str(failed))
        finally:
            # A handle that the caller keeps must not keep the models.
            self._worker, self._descriptions = None, ()
            process_state.leave()

    def ready(self, ports: Mapping[str, int]) -> None:
        self._on_ready(ports)
        self._settled.set()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            if self._thread is not None:
                self._thread.join()
            raise failure


class _Companion:
    """Reports that the worker is ready, and stops it with the program."""

    def __init__(self, owner: WorkerThread) -> None:
        self._owner = owner
        self._watching: asyncio.Task[None] | None = None

    async def start(self, ports: Mapping[str, int]) -> None:
        self._watching = asyncio.ensure_future(self._watch_main_thread())
        self._owner.ready(ports)

    def is_complete(self, served: Mapping[tuple[str, str], str]) -> bool:
        return True

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch_main_thread(self) -> None:
        """A program that ends without ``stop`` still answers its requests and closes its models."""
        while threading.main_thread().is_alive():  # noqa: ASYNC110 (a thread's end sets no event)
            await asyncio.sleep(_CHECK_SECONDS)
        self._owner.request_stop()
