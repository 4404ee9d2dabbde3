"""What a fetch reports while it runs: text for the repository index, and lines of the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

#: Gets a sentence such as "fetching 1.2 of 2.0 GB"; called from threads.
Report = Callable[[str], None]

_REPORT_SECONDS = 0.2
_LOG_SECONDS = 5.0
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class FetchProgress:
    """Counts the bytes of one model that arrive on several threads."""

    def __init__(self, model: str, total: int, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._model, self._total, self._report, self._clock = model, total, report, clock
        self._lock = threading.Lock()
        self._fetched = 0
        self._begun = self._logged = clock()
        self._reported = self._begun - _REPORT_SECONDS

    def add(self, count: int) -> None:
        with self._lock:
            self._fetched += count
            now = self._clock()
            text = f"fetching {amounts(self._fetched, self._total)}"
            if now - self._reported >= _REPORT_SECONDS:
                self._reported = now
                self._report(text)
            if now - self._logged >= _LOG_SECONDS:
                self._logged = now
                rate = self._fetched / max(now - self._begun, 1e-9)
                log.info(text, model=self._model, megabytes_per_second=round(rate / 1e6, 1))

    def waits(self) -> None:
        """Another process of this machine fetches the file."""
        now = self._clock()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._report("waiting for another process of this machine that fetches it")

    def end(self) -> None:
        if self._fetched:
            seconds = self._clock() - self._begun
            log.info("fetched", model=self._model, bytes=self._fetched, seconds=round(seconds, 3))


def amounts(part: int, whole: int) -> str:
    """``1.2 of 2.0 GB``."""
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), (1, "B"))
    return f"{part / size:.{0 if size == 1 else 1}f} of {whole / size:.{0 if size == 1 else 1}f} {unit}"
