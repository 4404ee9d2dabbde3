"""Rates of counters that may begin within the window. Pure.

Series of failures begin with the first failure, so that ``rate`` never sees its growth from 0 to 1; a burst between two
readings would be missed as a whole. A series that was not there at the window's start began within it if its page was
read then, or if its process started later: then its value is its growth.
"""

from __future__ import annotations

import re
from typing import Final

from isochrone.monitoring.rules import RecordingRule

#: Pages of which the beginning of a window is known; the window follows.
KNOWN_SINCE: Final = "isochrone:known_since:"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def known_since(window: str) -> RecordingRule:
    """What ``per_second`` reads, of the same window."""
    read = f"max by (fleet, instance) (up{{FLEET}} offset {window}) == 1"
    started = f"min by (fleet, instance) (process_start_time_seconds{{FLEET}}) > time() - {seconds(window)}"
    return RecordingRule(KNOWN_SINCE + window, f"{read} or {started}")


def per_second(selector: str, window: str) -> str:
    """Growth per second over a window, of counters of processes."""
    known = f"on (fleet, instance) {KNOWN_SINCE}{window}{{FLEET}}"
    began = f"({selector} unless {selector} offset {window}) and {known}"
    return f"(({began}) / {seconds(window)} or rate({selector}[{window}]))"


def seconds(window: str) -> int:
    """Of a duration with one unit, as ``5m``."""
    found = re.fullmatch(r"(\d+)([smhd])", window)
    if found is None:
        raise ValueError(f"a window: expected a number and one of s, m, h, d, given {window!r}")
    return int(found[1]) * _SECONDS[found[2]]
