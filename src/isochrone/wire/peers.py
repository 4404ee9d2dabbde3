"""The other end of an exchange's connection."""

from __future__ import annotations

from typing import Any


def peer_of(exchange: Any) -> str:
    """The peer's address without its port; "": a socket of this machine's files, or no connection."""
    transport = getattr(getattr(exchange, "connection", None), "transport", None)
    if transport is None:
        return ""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""
