"""What a server that others can reach lacks: said in one line at its start, or a reason not to start. Pure."""

from __future__ import annotations

from collections.abc import Collection

from isochrone.secure.loopback import is_loopback


def exposure(service: str, hosts: Collection[str], *, tls: bool, access: bool) -> str:
    """The line; "": only this machine reaches it, or it has TLS and asks callers who they are."""
    reached = sorted(host for host in set(hosts) if not is_loopback(host))
    if not reached or (tls and access):
        return ""
    lacks, flags = [], []
    if not tls:
        lacks.append("requests and tokens travel in plain text")
        flags.append("--tls-cert and --tls-key")
    if not access:
        lacks.append("every caller may do everything")
        flags.append("--access FILE")
    where = f"{service} can be reached from other machines ({', '.join(reached)})"
    remedy = f"start it with {' and '.join(flags)}, or let it listen on 127.0.0.1"
    return f"{where}, and {' and '.join(lacks)}: {remedy}"
