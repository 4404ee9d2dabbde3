"""Puts the console into the control API's application, at /console, behind the same guard.

NiceGUI takes seconds to import and tens of megabytes: it is imported when the first browser asks for a page, in a
thread, so that a controller nobody looks at pays nothing, and one that leads misses no heartbeat.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import Any, Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from isochrone.console.admission import MOST_PAGES, Kind, PageLimit, kind_of
from isochrone.console.live.aggregation import Aggregation
from isochrone.console.live.routes import live_routes
from isochrone.console.login.gate import Gate
from isochrone.console.login.logins import Logins
from isochrone.console.login.provider_logins import ProviderLogins
from isochrone.console.login.routes import login_routes, without_logins
from isochrone.console.places import ASSETS, ASSETS_DIRECTORY, MOUNT, SESSION, THEME
from isochrone.console.theme import style_sheet
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.control.api.callers.rights import Rights
from isochrone.control.api.service import ControlService
from isochrone.errors import Unsupported
from isochrone.secure.audit.audit import Audit

log = structlog.get_logger(__name__)

#: Nothing of another site, neither code nor pictures; no page of another site may show it in a frame. The framework
#: compiles its templates in the browser, which needs eval.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'self'; "
    "form-action 'self'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}
#: Of NiceGUI's own files, whose paths have its version.
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_TOO_MANY: Final = "Too many pages of this controller's console are open or asked for; try again, or use another one."
#: RFC 6455's registry of close codes.
_TRY_AGAIN_LATER: Final = 1013
_NOTHING: Final = Router()


def is_installed() -> bool:
    """Whether NiceGUI is; nothing is imported."""
    return find_spec("nicegui") is not None


def require_installed() -> None:
    if not is_installed():
        raise Unsupported("the console needs NiceGUI: pip install 'isochrone[console]', or start without --console")


class Console:
    """The console of one controller."""

    def __init__(self, rights: Rights | None = None, audit: Audit | None = None) -> None:
        """``rights``: those of the API. With those of an access file, browsers log in. ``audit``: the controller's."""
        self._audit = audit
        self._aggregation: Aggregation | None = None
        self._pages: _Pages | None = None
        self.logins = Logins(rights) if isinstance(rights, AccessRights) else None
        self._providers = ProviderLogins(self.logins) if self.logins is not None else None

    @property
    def middleware(self) -> list[Middleware]:
        """For ``create_app``, behind its guard: without it, nobody who logged in is known."""
        return [Middleware(Gate, logins=self.logins, audit=self._audit)] if self.logins is not None else []

    def routes(self, service: ControlService) -> list[BaseRoute]:
        """For ``create_app``, which makes the service. In the event loop that serves them."""
        self._aggregation = aggregation = Aggregation(service)
        self._pages = _Pages(service)
        theme = style_sheet()

        async def root(request: Request) -> Response:
            return RedirectResponse(f"{MOUNT}/")

        async def colors(request: Request) -> Response:
            return Response(theme, media_type="text/css", headers={"cache-control": "no-cache"})

        if self.logins is not None and self._providers is not None:
            login = login_routes(service, self.logins, self._providers)
        else:
            login = [Route(SESSION, without_logins, methods=["GET"])]
        return [
            Route("/", root, methods=["GET"]),
            *login,
            *live_routes(aggregation),
            Route(THEME, colors, methods=["GET"]),
            Mount(ASSETS, StaticFiles(directory=ASSETS_DIRECTORY)),
            Mount(MOUNT, self._pages),
        ]

    async def run(self) -> None:
        """Aggregate until cancelled; then NiceGUI is stopped, if it was started."""
        assert self._aggregation is not None
        assert self._pages is not None
        parts = [asyncio.ensure_future(self._aggregation.run())]
        if self._providers is not None:
            parts.append(asyncio.ensure_future(self._providers.run()))
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._pages.close()


class _Pages:
    """NiceGUI's application, imported and started by the first request."""

    def __init__(self, service: ControlService) -> None:
        self._service = service
        self._app: ASGIApp | None = None
        self._kept_pages: Callable[[], int] = int
        self._limit = PageLimit()
        self._sockets = 0
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = kind_of(scope["path"].removeprefix(scope.get("root_path", "")))
        if kind is Kind.UNKNOWN:
            # The router's own answer, also to WebSockets.
            await _NOTHING(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        # The first request of a socket by polling, which has no session yet, makes one.
        is_limited = kind is Kind.PAGE or (kind is Kind.SOCKET and b"sid=" not in scope["query_string"])
        if is_limited and not self._limit.admits(asyncio.get_running_loop().time(), self._kept_pages()):
            await PlainTextResponse(_TOO_MANY, 503, {"retry-after": "5", **_HEADERS})(scope, receive, send)
            return
        app = self._app or await self._start()

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if kind is Kind.PAGE:
                    # Nothing to go back to after a logout.
                    headers["cache-control"] = "no-store"
                if "/_nicegui/" in scope["path"] and message["status"] == 200:
                    headers["cache-control"] = _FOR_EVER
            await send(message)

        await app(scope, receive, with_headers)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sockets >= MOST_PAGES:
            await receive()
            # Before it is accepted, this is answered with 403; the browser tries again.
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": _TOO_MANY})
            return
        self._sockets += 1
        try:
            await (self._app or await self._start())(scope, receive, send)
        finally:
            self._sockets -= 1

    async def _start(self) -> ASGIApp:
        async with self._starting:
            if self._app is not None:
                return self._app
            require_installed()
            catalog = await asyncio.to_thread(importlib.import_module, "isochrone.console.pages.catalog")
            app: ASGIApp = await self._stack.enter_async_context(catalog.running_pages(self._service))
            self._kept_pages = catalog.kept_pages
            self._app = app
            log.info("console started")
            return app

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def running(console: Console) -> AsyncIterator[None]:
    """The console's task, for tests and programs that serve the application themselves."""
    task = asyncio.create_task(console.run(), name="console")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
