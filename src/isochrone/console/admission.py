"""Which requests reach NiceGUI: those for its pages and files, and no more pages than a controller can afford. Pure.

A page is built on the event loop of the controller, and is kept for a while even if its browser never comes back.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from isochrone.console.places import PAGE_PATHS

#: Pages that are kept at once. Each takes half a megabyte.
MOST_PAGES: Final = 256
#: Pages per second, and how many may come at once: a room of people who open the console. Building one takes tens of
#: milliseconds of the event loop.
RATE: Final = 4.0
BURST: Final = 64
_FILES: Final = ("/_nicegui/", "/favicon.ico")
SOCKET: Final = "/_nicegui_ws/"


class Kind(Enum):
    PAGE = "page"
    FILE = "file"
    SOCKET = "socket"
    UNKNOWN = "unknown"


def kind_of(path: str) -> Kind:
    """``path``: below the console's own."""
    if (path.rstrip("/") or "/") in PAGE_PATHS:
        return Kind.PAGE
    if path.startswith(_FILES):
        return Kind.FILE
    return Kind.SOCKET if path.startswith(SOCKET) else Kind.UNKNOWN


class PageLimit:
    """Admits ``RATE`` pages per second, after up to ``BURST`` at once."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = 0.0

    def admits(self, now: float, pages: int) -> bool:
        """One more page at ``now``, in seconds, while ``pages`` are kept."""
        self._left = min(float(BURST), self._left + max(0.0, now - self._at) * RATE)
        self._at = now
        if pages >= MOST_PAGES or self._left < 1.0:
            return False
        self._left -= 1.0
        return True
