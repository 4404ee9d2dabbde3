"""The processes in which torch.compile compiles: started by the first load that compiles, ended with the last.

inductor starts one process for each core and keeps them for the life of the server. A server compiles only while it
loads: afterwards they hold memory for nothing. torch has one pool for the whole process, so loads that compile at the
same time share it, and the last one of them ends it. A pool that was there before, such as that of a python model
which compiles in this process, is not ours to end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog

log = structlog.get_logger(__name__)

#: The module of torch that has the pool. Imported by the first compilation.
_POOLS = "torch._inductor.async_compile"


class CompileWorkers:
    """Counts the loads that compile. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._are_ours = False

    @contextmanager
    def needed(self) -> Iterator[None]:
        """A load compiles inside; after the last one, no process is left."""
        with self._lock:
            if self._loads == 0:
                self._are_ours = not _pools()
            self._loads += 1
        try:
            yield
        finally:
            # A load that begins meanwhile waits: it starts a new pool.
            with self._lock:
                self._loads -= 1
                if self._loads == 0 and self._are_ours:
                    _end_pools()


COMPILE_WORKERS = CompileWorkers()


def _pools() -> list[Any]:
    module = sys.modules.get(_POOLS)
    return list(getattr(module, "_pool_set", ()))


def _end_pools() -> None:
    module: Any = sys.modules.get(_POOLS)
    pools = _pools()
    if not pools:
        return
    left = [each for pool in pools for each in _left_descriptors(pool)]
    try:
        # torch's own call at the end of a process; the next compilation makes a new pool.
        module.shutdown_compile_workers()
    except Exception as error:  # the model is loaded: the processes cost memory alone
        log.warning("the processes that compiled a model did not end", error=str(error))
        return
    for descriptor, file in left:
        # Unless torch has closed it: the number may be another file's by now.
        if _file(descriptor) == file:
            with suppress(OSError):
                os.close(descriptor)
    # Kernels that nobody waited for, as after a failed load, would fail whoever asks for them next.
    kernels = getattr(module, "CompiledTritonKernels", None)
    if kernels is not None:
        kernels.cache_clear()


def _left_descriptors(pool: Any) -> list[tuple[int, tuple[int, int]]]:
    """The worker's ends of a pool's pipes, which torch up to 2.13 leaves open in this process, and their files."""
    try:
        own = {pool.read_pipe.fileno(), pool.write_pipe.fileno()}
        pipes = {_file(descriptor) for descriptor in own}
    except (AttributeError, OSError, ValueError):  # a pool without pipes, or one that has ended
        return []
    descriptors = {int(name) for name in os.listdir("/proc/self/fd")} - own
    found = [(descriptor, _file(descriptor)) for descriptor in descriptors]
    return [(descriptor, file) for descriptor, file in found if file is not None and file in pipes]


def _file(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None: it has been closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
