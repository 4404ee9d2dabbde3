"""Blocking work of the catalog, off the loop's thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from isochrone import heap
from isochrone.errors import Internal

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Runs ``work`` on a thread of its own: in a pool, models that hang while loading would block the others."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            settle(future.set_exception, error if isinstance(error, Exception) else Internal(f"{error!r}"))
        else:
            settle(future.set_result, result)

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        def apply() -> None:
            if not future.done():
                setter(value)

        try:
            loop.call_soon_threadsafe(apply)
        except RuntimeError:  # the loop is closed
            pass

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await future


def release_memory() -> None:
    """Collects cycles and returns free pages to the operating system."""
    # Objects of the start-up are frozen, and the model may be one of them.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    heap.trim()
