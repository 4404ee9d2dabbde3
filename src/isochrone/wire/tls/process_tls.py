"""The TLS by which this process calls the other processes of its fleet.

A process has one identity, which all its calls have in common: it is set once, where the command line is read, and
followed from then on. Processes that belong to no fleet set none, and call plainly.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.contexts import ServerTls

#: Seconds between looks at the files of certificates.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProcessTls:
    """``permissive``: processes of the fleet that have no TLS yet are called, too."""

    client: ClientTls | None = None
    permissive: bool = False
    #: For calls whose connections are few: without sessions.
    context: ssl.SSLContext | None = field(default=None, compare=False)


_present = ProcessTls()


def set_process_tls(client: ClientTls | None, *, permissive: bool = False) -> None:
    global _present
    _present = ProcessTls(client, permissive, None if client is None else client.to_servers())


def process_tls() -> ProcessTls:
    return _present


def refuses(is_tls: bool) -> str:
    """Why this process does not call one of its fleet that has TLS or not; "": it does."""
    if is_tls and _present.client is None:
        return "it speaks TLS, and this process has no --upstream-ca"
    if not is_tls and _present.client is not None and not _present.permissive:
        return "it speaks plain HTTP, and the fleet requires TLS (security.tls.mode)"
    return ""


async def follow_certificates(contexts: Iterable[ServerTls | ClientTls]) -> None:
    """Until cancelled: certificates that were replaced are used."""
    followed = tuple(contexts)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for each in followed:
            each.refresh()
