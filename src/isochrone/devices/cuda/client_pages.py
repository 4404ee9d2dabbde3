"""Memory that clients share with the server, pinned for the GPUs that read it.

A region is pinned when an instance on a GPU first reads a large input from it, on a thread: it takes 0.1 to 0.3 ms for
each megabyte. Until then, and where it cannot be pinned, inputs are copied through the instance's own pinned memory. So
no process without a model on a GPU ever loads the driver for it. Copies hold what they read: a region that its client
unregisters is unpinned, and unmapped, only when the device has read the last of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import structlog

from isochrone.devices.cuda.host_ranges import HostRange, HostRanges
from isochrone.devices.cuda.interface import CudaDriver
from isochrone.devices.cuda.library import host_address, process_driver
from isochrone.devices.cuda.pinning import PinnedView, pin

log = structlog.get_logger(__name__)

#: Most bytes that are pinned. A client may register more than it has written, and pinning allocates every page.
MAX_PINNED_BYTES = 4 << 30


class ClientPages:
    """Any thread may use it."""

    def __init__(self, load_driver: Callable[[], CudaDriver]) -> None:
        self._load_driver = load_driver
        self._lock = threading.Lock()
        self._ranges = HostRanges()
        self._pinned: dict[HostRange, PinnedView] = {}
        self._pinned_bytes = 0
        #: What the thread has to do: pin a range for a device, or unpin it (None).
        self._jobs: deque[tuple[HostRange, int | None]] = deque()
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Whether any memory was offered. Without the lock: most processes have none."""
        return len(self._ranges) > 0

    def offer(self, view: memoryview) -> HostRange:
        """Memory that devices may want. It stays mapped until it is withdrawn and no copy reads it."""
        offered = HostRange(host_address(view), view.nbytes, view)
        with self._lock:
            self._ranges.add(offered)
        return offered

    def withdraw(self, offered: HostRange) -> None:
        """No new copy begins. Called once."""
        with self._lock:
            if offered.withdraw():
                self._start((offered, None))
            elif not offered.is_busy:
                self._forget(offered)

    def hold(self, spans: Sequence[tuple[int, int]], device: int, held: list[HostRange]) -> list[bool]:
        """Whether each span of (address, size) is in pinned memory, which is added to ``held`` once, for ``release``.

        What lies in memory that could be pinned is pinned for later copies.
        """
        found: list[bool] = []
        start = stop = 0
        pinned = False
        with self._lock:
            for address, size in spans:
                # Requests of one client are mostly in one region.
                if not start <= address <= stop - size:
                    span = self._ranges.find(address, size)
                    start, stop = (0, 0) if span is None else (span.address, span.address + span.size)
                    pinned = span is not None and (span in held or self._holds(span, device, held))
                found.append(pinned)
        return found

    def _holds(self, wanted: HostRange, device: int, held: list[HostRange]) -> bool:
        """Under the lock."""
        if wanted.hold():
            held.append(wanted)
            return True
        if wanted.want():
            self._start((wanted, device))
        return False

    def release(self, held: Iterable[HostRange]) -> None:
        """The device has read them."""
        with self._lock:
            for each in held:
                if each.release():
                    self._start((each, None))

    def wait(self) -> None:
        """Returns when nothing is being pinned or unpinned."""
        while True:
            with self._lock:
                thread = self._thread
            if thread is None:
                return
            thread.join()

    def _start(self, job: tuple[HostRange, int | None]) -> None:
        """Under the lock."""
        self._jobs.append(job)
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="pinning", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads: the next job tries again
                return
            self._thread = thread

    def _work(self) -> None:
        """Until there is nothing to do: most of the time there is no thread."""
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job, device = self._jobs.popleft()
            if device is None:
                self._unpin(job)
            else:
                self._pin(job, device)

    def _pin(self, wanted: HostRange, device: int) -> None:
        pinned = self._try_to_pin(wanted, device)
        with self._lock:
            if pinned is not None:
                self._pinned[wanted] = pinned
                self._pinned_bytes += wanted.size
            if wanted.settle(pinned is not None):
                self._jobs.append((wanted, None))
            elif pinned is None and wanted.withdrawn:
                self._forget(wanted)

    def _try_to_pin(self, wanted: HostRange, device: int) -> PinnedView | None:
        reason = f"{self._pinned_bytes} bytes are pinned, of at most {MAX_PINNED_BYTES}"
        if self._pinned_bytes + wanted.size <= MAX_PINNED_BYTES:
            try:
                return pin(self._load_driver(), device, wanted.memory)
            except Exception as error:  # the thread goes on with other jobs
                reason = str(error)
        log.info("a region of shared memory is not pinned: its inputs are copied twice", bytes=wanted.size, why=reason)
        return None

    def _unpin(self, ended: HostRange) -> None:
        with self._lock:
            pinned = self._pinned.pop(ended)
            self._pinned_bytes -= ended.size
        try:
            pinned.unpin()
        except Exception as error:  # the device is lost
            log.debug("shared memory was not unpinned", bytes=ended.size, reason=str(error))
        del pinned
        with self._lock:
            self._forget(ended)

    def _forget(self, ended: HostRange) -> None:
        """Lets the memory be unmapped, and its addresses be used again. Under the lock."""
        self._ranges.remove(ended)
        ended.memory = None


#: System shared memory of this process's clients.
CLIENT_PAGES = ClientPages(process_driver)
