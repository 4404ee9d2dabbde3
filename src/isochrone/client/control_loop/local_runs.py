"""Runs of the local model, on the event loop or on a thread of its own; one at a time, never queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LocalModel = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class LocalRuns:
    def __init__(self, model: LocalModel, *, in_thread: bool) -> None:
        self._model = model
        self._threads = ThreadPoolExecutor(1, "isochrone-local-model") if in_thread else None
        self._running: asyncio.Future[Mapping[str, Any]] | None = None

    @property
    def is_in_thread(self) -> bool:
        return self._threads is not None

    @property
    def is_busy(self) -> bool:
        """A run of an earlier tick has not ended."""
        return self._running is not None and not self._running.done()

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        outputs = self._model(inputs)
        if not isinstance(outputs, Mapping):
            raise TypeError(f"the local model returned {type(outputs).__name__}, expected a dict of outputs")
        return outputs

    def start(self, inputs: Mapping[str, Any]) -> asyncio.Future[Mapping[str, Any]]:
        """A run on the thread, which must not be busy."""
        self._running = asyncio.get_running_loop().run_in_executor(self._threads, self.run, inputs)
        return self._running

    async def close(self) -> None:
        """Wait for a run that is under way: a thread cannot be interrupted."""
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()
        if self._threads is not None:
            self._threads.shutdown()
