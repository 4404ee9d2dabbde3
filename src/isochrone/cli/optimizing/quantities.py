"""Times and shares as people write them on a command line."""

from __future__ import annotations

import re

from isochrone.errors import FlagError

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = r"([0-9]*\.?[0-9]+)"


def seconds_of(flag: str, text: str) -> float:
    """Of ``5ms``, ``800us``, ``0.1s``."""
    found = re.fullmatch(rf"{_NUMBER}\s*(us|µs|ms|s)", text.strip())
    value = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if value <= 0:
        raise FlagError(flag, "a time with its unit, such as 5ms, 800us or 0.1s", text)
    return value


def share_of(flag: str, text: str) -> float:
    """Of ``0.5%`` or ``0.005``."""
    found = re.fullmatch(rf"{_NUMBER}\s*(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise FlagError(flag, "a share such as 0.5% or 0.005, at most 100%", text)
    return value
