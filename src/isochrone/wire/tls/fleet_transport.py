"""HTTP calls to the other processes of a fleet, over the TLS of this process.

A request that proves who calls never leaves in plain text where the fleet requires TLS. Apart from ``process_tls``,
since httpx takes a tenth of a second to import.
"""

from __future__ import annotations

import httpx

from isochrone.resolving.http_transport import resolving_transport
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.process_tls import process_tls, refuses

#: Headers that prove to a process of the fleet who calls: who reads them can call as this process.
PROOFS = ("authorization", "x-isochrone-control")


def fleet_transport(limits: httpx.Limits | None = None) -> httpx.AsyncBaseTransport:
    """For clients of processes of the fleet: ``https`` with this process's certificate, ``http`` as it is."""
    return _FleetTransport(limits)


class _FleetTransport(httpx.AsyncBaseTransport):
    """Reads the process's TLS at each request: a client may be made before it is set, and outlive a change of it."""

    def __init__(self, limits: httpx.Limits | None) -> None:
        self._limits = limits
        self._of: ClientTls | None = None
        self._inner = resolving_transport(limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        present = process_tls()
        if present.client is not self._of:
            before, self._of = self._inner, present.client
            self._inner = resolving_transport(present.context or False, limits=self._limits)
            await before.aclose()
        if request.url.scheme == "https":
            if present.client is None:
                # Without authorities, nothing would be verified.
                raise httpx.ConnectError(refuses(True), request=request)
            if name := present.client.server_name:
                request.extensions["sni_hostname"] = name
        elif (reason := refuses(False)) and any(name in request.headers for name in PROOFS):
            raise httpx.ConnectError(reason, request=request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()
