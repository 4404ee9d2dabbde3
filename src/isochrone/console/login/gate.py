"""Stands before everything that a controller with an access file serves: puts the credential of a session in place of
its cookie, and lets nobody to the console who may not look at the fleet.

Every path of the console is closed unless it is named here. Behind the gate, requests with a session are like those of
any other caller, so that one policy decides, and the audit log names the identity.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from isochrone.console.admission import SOCKET, Kind, kind_of
from isochrone.console.login.local import may_use_cookie, own_origin
from isochrone.console.login.logins import Logins, credential_of
from isochrone.console.login.sessions import Session
from isochrone.console.places import (
    LIVE,
    LOGIN,
    LOGIN_CALLBACK,
    LOGIN_PROVIDER,
    LOGIN_STYLE,
    LOGOUT,
    MOUNT,
    THEME,
)
from isochrone.control.api.callers.while_allowed import while_allowed
from isochrone.control.api.messages import ErrorAnswer
from isochrone.control.api.recording import actor_of, count_refusal
from isochrone.errors import IsochroneError, PermissionDenied
from isochrone.secure.access.permissions import FLEET_READ
from isochrone.secure.audit.audit import Audit

#: What a browser without a session gets, and nothing else: none of it says anything of the fleet.
OPEN: Final = frozenset((LOGIN, LOGIN_PROVIDER, LOGIN_CALLBACK, LOGOUT, LOGIN_STYLE, THEME))
#: Forms without a script: their handlers want this site's ``Origin``, and use no right of a session.
_FORMS: Final = frozenset((LOGIN, LOGIN_PROVIDER))
#: The framework's messages by POST. Browsers state the origin; the framework can send no header of ours.
_MESSAGES: Final = f"{MOUNT}{SOCKET}"
_READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
PAGE_TOKEN: Final = "x-isochrone-page-token"
#: RFC 6455, section 7.4.1.
_POLICY_VIOLATION: Final = 1008
#: Of a request, which the gate states itself.
_REPLACED: Final = frozenset((b"cookie", b"x-isochrone-user"))


class Gate:
    """Middleware behind ``Guard``, which has checked ``Host`` and ``Origin``."""

    def __init__(self, app: ASGIApp, logins: Logins, audit: Audit | None = None) -> None:
        """``audit`` counts what is refused; None: nothing does."""
        self._app = app
        self._logins = logins
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        session = self._session(scope, headers)
        if session is not None and (error := _forgery(scope, headers, session)) is not None:
            await _refused(error, scope, receive, send)
        elif path == MOUNT or path.startswith(f"{MOUNT}/"):
            await self._console(path, session, scope, receive, send)
        elif session is not None:
            scope = {**scope, "headers": _with_credential(scope, session)}
            await while_allowed(self._app, scope, receive, send, lambda: self._logins.is_open(session))
        else:
            await self._app(scope, receive, send)

    def _session(self, scope: Scope, headers: Headers) -> Session | None:
        # A WebSocket begins as a GET, and every page of another port of this host could open one.
        if scope["type"] == "websocket" and not own_origin(headers):
            return None
        if not may_use_cookie(headers, scope.get("method", "GET")):
            return None
        return self._logins.session_of(headers)

    async def _console(self, path: str, session: Session | None, scope: Scope, receive: Receive, send: Send) -> None:
        logins, headers = self._logins, Headers(scope=scope)
        # For the console's own routes.
        scope.setdefault("state", {})["session"] = session
        if path in OPEN:
            await self._app(scope, receive, send)
            return
        await logins.rights.decided(headers if session is None else credential_of(session))
        error = logins.refusal(session, headers)
        kind = kind_of(path.removeprefix(MOUNT))
        is_page = kind is Kind.PAGE and scope["type"] == "http" and scope["method"] in _READING
        # A browser that brings nothing, and is sent to the login page, has tried nothing.
        if error is not None and not (is_page and session is None and "authorization" not in headers):
            credential = headers if session is None else credential_of(session)
            actor = actor_of(HTTPConnection(scope), logins.rights, credential)
            count_refusal(self._audit, actor, FLEET_READ, error)
        if error is not None and is_page:
            asked = f"{path}?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else path
            answer = RedirectResponse(f"{LOGIN}?next={quote(asked, safe='/')}", 303, {"cache-control": "no-store"})
            await answer(scope, receive, send)
        elif error is not None:
            await _refused(error, scope, receive, send)
        elif path == LIVE or kind is Kind.SOCKET:
            await while_allowed(self._app, scope, receive, send, lambda: self._may_go_on(session, headers))
        else:
            await self._app(scope, receive, send)

    def _may_go_on(self, session: Session | None, headers: Headers) -> bool:
        is_open = session is None or self._logins.is_open(session)
        return is_open and self._logins.refusal(session, headers) is None


def _forgery(scope: Scope, headers: Headers, session: Session) -> IsochroneError | None:
    """Why a request that may change something is not one of the console's own pages; None: it is one."""
    path = scope["path"]
    if scope["type"] != "http" or scope["method"] in _READING or path in _FORMS:
        return None
    if path.startswith(_MESSAGES):
        is_own = bool(own_origin(headers))
    else:
        is_own = session.is_page_token(headers.get(PAGE_TOKEN, ""))
    return None if is_own else PermissionDenied("this request is not one of the console's pages; open the page again")


def _with_credential(scope: Scope, session: Session) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _REPLACED]
    # The fleet's events name who it is, and not who it claims to be.
    user = f"{quote(session.identity, safe=' @:/')} (console)"
    return [*headers, (b"authorization", session.credential.encode()), (b"x-isochrone-user", user.encode())]


async def _refused(error: IsochroneError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message[:120]})
        return
    content = msgspec.json.encode(ErrorAnswer(error.message, error.code))
    headers = {"cache-control": "no-store"}
    await Response(content, error.http_status, headers, media_type="application/json")(scope, receive, send)
