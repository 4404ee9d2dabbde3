"""Settings of the flight recorder: how much is kept, and where deadline misses are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isochrone.errors import InvalidArgument

OFF = "off"
#: Requests that are kept. A record and what it refers to take about a kilobyte at most.
DEFAULT_REQUESTS = 4096
DEFAULT_EVENTS = 512
_MOST_REQUESTS = 1 << 20


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What one process keeps."""

    #: The last requests; 0: nothing is recorded.
    requests: int = DEFAULT_REQUESTS
    #: The last events of the process: pauses, stalls, loads, ejections.
    events: int = DEFAULT_EVENTS
    #: The directory to which requests that missed their deadline are appended; None: none are.
    dump: Path | None = None


def read_recorder(text: str, dump: str = "") -> RecorderSettings:
    """``text``: off, or the number of requests. Raises ``InvalidArgument``."""
    if text == OFF:
        if dump:
            raise InvalidArgument("--dump-flights has no effect with --flight-recorder off; leave one of them out")
        return RecorderSettings(0)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= _MOST_REQUESTS):
        raise InvalidArgument(
            f"--flight-recorder: expected off or a number of requests from 1 to {_MOST_REQUESTS}, given {text[:50]!r}"
        )
    return RecorderSettings(int(text), dump=Path(dump) if dump else None)
