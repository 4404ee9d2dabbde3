"""GET requests to the processes of a fleet. A process that does not answer in time has said nothing."""

from __future__ import annotations

import httpx

from isochrone.resolving.http_transport import resolving_transport

#: Of one request.
SECONDS = 1.0
#: Processes that are asked at the same time.
AT_ONCE = 64


def page_client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=AT_ONCE)
    return httpx.AsyncClient(timeout=SECONDS, transport=resolving_transport(limits=limits), trust_env=False)


def page_url(host: str, port: int, path: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
