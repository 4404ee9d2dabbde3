"""Which addresses are those of this machine alone. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address, or the name ``localhost``, is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
