"""Work that the catalog keeps off the loop's thread, and memory given back after an unload."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from isochrone.errors import Internal

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Runs on a thread of its own: a model that hangs while loading must not use up a pool others need."""
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
        except RuntimeError:  # the loop is closed: nobody waits
            pass

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await future


def give_memory_back() -> None:
    """Unload promises that memory is free when it returns: collect cycles, and have glibc return free pages."""
    # What start-up made was set aside from collection; the model may be part of it.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        pass
