"""Background tasks: keeps tasks alive that no coroutine awaits, and ends them together.

An event loop holds only weak references to its tasks, so a task without another reference can be garbage-collected
while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class BackgroundTasks:
    """The running tasks of one owner."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    async def finish(self) -> None:
        """Return when no task is running; raise the exception of a failed task."""
        while self._running:
            await asyncio.gather(*self._running)

    async def end(self) -> None:
        """Cancel every task and return when all have ended."""
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when the tasks that are running now have ended, or after ``seconds``."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)
