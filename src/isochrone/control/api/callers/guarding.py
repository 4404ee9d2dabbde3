"""Rejects requests from browser pages of other sites, and requests to unknown host names.

A page whose name was made to resolve to this machine (DNS rebinding) passes every test of its origin, but the name in
``Host`` reveals it. So a name must be one of this controller's; a numeric address cannot be used for DNS rebinding.
Programs other than browsers can send any header: this protects users of browsers, not the port.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from isochrone.control.api.messages import ErrorAnswer
from isochrone.errors import IsochroneError, PermissionDenied
from isochrone.protocol.access import origins

#: RFC 6455, section 7.4.1.
_POLICY_VIOLATION = 1008
#: Of the schemes that pages have; ``Host`` omits them.
_PORTS = {"http": 80, "https": 443}


class Guard:
    """Middleware before the application. ``names``: host names of this controller, beside this machine's own."""

    def __init__(self, app: ASGIApp, names: Collection[str] = (), allowed_origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in (*names, *_own_names()))
        self._allowed_origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            error = self.refusal(Headers(scope=scope))
            if error is not None and scope["type"] == "websocket":
                # Browsers let every page open a WebSocket to any site: only the origin tells them apart. Closed before
                # it is accepted, it is answered with 403.
                await receive()
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message[:120]})
                return
            if error is not None:
                error_answer = msgspec.json.encode(ErrorAnswer(error.message, error.code))
                await Response(error_answer, error.http_status, media_type="application/json")(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def refusal(self, headers: Headers) -> IsochroneError | None:
        host = headers.get("host", "")
        if not is_known_host(host, self._names):
            return PermissionDenied(
                f"Host {host[:200]!r} is not a name of this controller; use its address, or start it with --allow-host"
            )
        origin = headers.get("origin")
        if origin is not None:
            given = origin.encode("latin-1", "replace")
            is_allowed = origins.is_allowed(given, host.encode("latin-1", "replace"), self._allowed_origins)
            if not is_allowed and not is_own_site(origin, host, self._names):
                return origins.refused(given)
        return None


def is_known_host(host: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` is an address, a local name of this machine, or one of ``names``."""
    try:
        name = (urlsplit(f"http://{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    return _is_address(name)


def is_own_site(origin: str, host: str, names: Collection[str]) -> bool:
    """Whether a page's ``Origin`` is the site in ``Host``, under one of ``names``.

    Those who may use a name are those who set it, so that a name with a dot is as good as an address here.
    """
    try:
        page, server = urlsplit(origin), urlsplit(f"http://{host}")
        default = _PORTS.get(page.scheme)
        name = (server.hostname or "").rstrip(".")
        same = (page.hostname, page.port or default) == (server.hostname, server.port or default)
    except ValueError:
        return False
    return same and default is not None and name in names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, ...]:
    # Not getfqdn: it queries the network, which may take seconds.
    name = socket.gethostname()
    return name, name.partition(".")[0]
