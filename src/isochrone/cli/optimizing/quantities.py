"""Times, sizes and shares as people write them on a command line."""

from __future__ import annotations

from isochrone.control.fleet.settings.quantities import parse_bytes, parse_milliseconds, parse_share
from isochrone.errors import FlagError


def milliseconds_of(flag: str, text: str) -> float:
    """Of ``5ms``, ``800us``, ``0.1s``."""
    try:
        value = parse_milliseconds(text)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise FlagError(flag, "a time above 0 with its unit, such as 5ms, 800us or 0.1s", f"'{text}'")
    return value


def bytes_of(flag: str, text: str) -> int:
    """Of ``500MiB`` or ``2GB``."""
    try:
        value = parse_bytes(int(text) if text.isdigit() else text)
    except ValueError:
        value = 0
    if value <= 0:
        raise FlagError(flag, "a number of bytes with its unit, such as 500MiB or 2GiB", f"'{text}'")
    return value


def share_of(flag: str, text: str) -> float:
    """Of ``0.5%`` or ``0.005``."""
    try:
        return parse_share(text if text.strip().endswith("%") else float(text))
    except ValueError:
        raise FlagError(flag, "a share such as 0.5% or 0.005, at most 100%", f"'{text}'") from None
