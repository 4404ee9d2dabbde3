"""GET requests to the processes of a fleet. A process that does not answer in time has said nothing."""

from __future__ import annotations

import httpx

from isochrone.wire.tls.fleet_transport import fleet_transport

#: Of one request.
SECONDS = 1.0
#: Processes that are asked at the same time.
AT_ONCE = 64


def page_client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=AT_ONCE)
    return httpx.AsyncClient(timeout=SECONDS, transport=fleet_transport(limits), trust_env=False)
