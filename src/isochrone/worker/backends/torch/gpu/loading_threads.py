"""Threads on which models are loaded onto GPUs, kept for later loads.

torch's attention keeps memory of the GPU for every thread that has run it, for the life of the process: with a new
thread for every load, 100 loads of a transformer took 58 MiB that unloads did not give back. A kept thread takes its
share once. Loads at the same time have threads of their own, so that one that hangs delays no other.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")

#: By the index of the GPU, since a thread has a current device. The end of a list is the thread that was used last.
_idle: defaultdict[int, list[LoadingThread]] = defaultdict(list)
_LOCK = threading.Lock()


class LoadingThread:
    """Runs the loads that it is given, one after another, as long as the process lives."""

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._loads: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._serve, name=f"loading-cuda-{gpu}", daemon=True).start()

    def submit(self, load: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def run() -> None:
            try:
                result = load()
            except BaseException as error:
                self._rest()
                future.set_exception(error)
            else:
                # Before the caller goes on: its next load shall find this thread idle.
                self._rest()
                future.set_result(result)

        self._loads.put(run)
        return future

    def _rest(self) -> None:
        with _LOCK:
            _idle[self._gpu].append(self)

    def _serve(self) -> None:
        while True:
            # Nothing of a load stays in a variable while the thread waits: it would keep the model.
            self._loads.get()()


def load_on_thread(gpu: int, load: Callable[[], Result]) -> Result:
    """Runs ``load`` on a kept thread and waits for its result."""
    with _LOCK:
        thread = _idle[gpu].pop() if _idle[gpu] else None
    return (thread or LoadingThread(gpu)).submit(load).result()


# The threads do not exist in a forked process.
os.register_at_fork(after_in_child=_idle.clear)
