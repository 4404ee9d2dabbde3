"""The routes of logging in and out. Every failure ends on a page that says why; none has a part of a credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from isochrone.console.login.attempts import SECONDS
from isochrone.console.login.local import LOGIN as LOGIN_COOKIE
from isochrone.console.login.local import SESSION as SESSION_COOKIE
from isochrone.console.login.local import cookie_of, next_page, own_origin, set_cookie
from isochrone.console.login.logins import Logins
from isochrone.console.login.page import HEADERS, failed_page, leaving_page, login_page
from isochrone.console.login.provider_logins import ProviderLogins
from isochrone.console.login.sessions import Session
from isochrone.console.places import LOGIN, LOGIN_CALLBACK, LOGIN_PROVIDER, LOGOUT, SESSION
from isochrone.control.api.service import ControlService
from isochrone.errors import IsochroneError, Unauthenticated
from isochrone.secure.access.grants import Grant
from isochrone.secure.audit.actor import Actor, anonymous
from isochrone.secure.loopback import is_loopback
from isochrone.secure.oidc.login.failures import LoginFailed

log = structlog.get_logger(__name__)

#: Bytes of a form: a token of 8 KiB, and some.
_MOST_FORM: Final = 16_384
_MOST_FIELDS: Final = 32
_NO_STORE: Final = {"cache-control": "no-store"}
_OTHER_SITE: Final = "The form was not sent by this page. Open the login page again."
_NO_ATTEMPT: Final = "This login is over, or began in another browser. Log in again."


def login_routes(service: ControlService, logins: Logins, providers: ProviderLogins) -> list[Route]:
    handlers = _Handlers(service, logins, providers)
    return [
        Route(LOGIN, handlers.show, methods=["GET"]),
        Route(LOGIN, handlers.with_token, methods=["POST"]),
        Route(LOGIN_PROVIDER, handlers.to_provider, methods=["POST"]),
        Route(LOGIN_CALLBACK, handlers.from_provider, methods=["GET"]),
        Route(LOGOUT, handlers.log_out, methods=["POST"]),
        Route(SESSION, handlers.session, methods=["GET"]),
    ]


async def without_logins(request: Request) -> Response:
    """The answer of ``SESSION`` where the console has none."""
    return _json({"logins": False})


class _Handlers:
    def __init__(self, service: ControlService, logins: Logins, providers: ProviderLogins) -> None:
        self._service = service
        self._logins = logins
        self._providers = providers

    async def show(self, request: Request) -> Response:
        session = _session_of(request)
        problem = ""
        if session is not None:
            refusal = self._logins.refusal(session, request.headers)
            problem = f"{session.identity}: {refusal.message}" if refusal is not None else ""
        wanted = next_page(request.query_params.get("next", ""))
        notice = "You are logged out." if "out" in request.query_params else ""
        return self._page(request, wanted, problem, notice=notice)

    async def with_token(self, request: Request) -> Response:
        form = await _form(request)
        wanted, origin = next_page(form.get("next", "")), own_origin(request.headers)
        if not origin:
            return self._page(request, wanted, _OTHER_SITE, 403)
        token = form.get("token", "").strip()
        credential = f"Bearer {token}"
        try:
            if not (token.isascii() and token.isprintable()) or not token or " " in token:
                raise Unauthenticated("this is not a token: expected one word of ASCII characters")
            grant = await self._logins.accepted(credential)
        except IsochroneError as error:
            self._refused(request, "token", error, credential)
            return self._page(request, wanted, f"Not logged in: {error.message}", error.http_status)
        is_secure = origin.startswith("https:")
        await self._record(request, grant, "token")
        session = self._logins.begin(credential, grant, _session_of(request), is_secure=is_secure)
        return _logged_in(request, session, RedirectResponse(wanted, 303, _NO_STORE))

    async def to_provider(self, request: Request) -> Response:
        form = await _form(request)
        wanted, origin = next_page(form.get("next", "")), own_origin(request.headers)
        if not origin:
            return self._page(request, wanted, _OTHER_SITE, 403)
        name = form.get("provider", "")
        try:
            attempt, url = await self._providers.begin(name, wanted, origin)
        except IsochroneError as error:
            log.warning("a login at a provider cannot begin", provider=name[:100], reason=error.message)
            return self._page(request, wanted, f"Not logged in: {error.message}", _status(error))
        response = HTMLResponse(leaving_page(url, name), headers=HEADERS)
        seconds = int(SECONDS)
        set_cookie(
            response, request.headers, LOGIN_COOKIE, attempt.browser, is_secure=attempt.is_secure, seconds=seconds
        )
        return response

    async def from_provider(self, request: Request) -> Response:
        answer = _answer(request)
        attempt = None
        for is_secure in (True, False):
            browser = cookie_of(request.headers, LOGIN_COOKIE, is_secure=is_secure)
            if attempt is None and browser:
                attempt = self._logins.attempts.take(answer.get("state", ""), browser, self._logins.clock())
        if attempt is None:
            return HTMLResponse(failed_page(_NO_ATTEMPT), 400, HEADERS)
        credential = ""
        try:
            login = await self._providers.finish(attempt, answer)
            credential = f"Bearer {login.token}"
            grant = await self._logins.accepted(credential)
        except IsochroneError as error:
            self._refused(request, attempt.provider, error, credential)
            return HTMLResponse(failed_page(f"Not logged in: {error.message}"), _status(error), HEADERS)
        await self._record(request, grant, attempt.provider)
        session = self._logins.begin(
            credential,
            grant,
            _session_of(request),
            is_secure=attempt.is_secure,
            provider=attempt.provider,
            login=login,
        )
        response = _logged_in(request, session, RedirectResponse(attempt.next_page, 303, _NO_STORE))
        set_cookie(response, request.headers, LOGIN_COOKIE, "", is_secure=attempt.is_secure, seconds=0)
        return response

    async def log_out(self, request: Request) -> Response:
        """The gate has compared the token of the page."""
        session = _session_of(request)
        response = _json({"next": f"{LOGIN}?out=1"})
        if session is None:
            return response
        self._logins.sessions.end(session.id)
        self._providers.end(session)
        set_cookie(response, request.headers, SESSION_COOKIE, "", is_secure=session.is_secure, seconds=0)
        log.info("logged out of the console", identity=session.identity)
        return response

    async def session(self, request: Request) -> Response:
        """For the pages: who looks, what it may do, and what they send with changes."""
        session = _session_of(request)
        return _json(
            {
                "logins": True,
                "identity": session.identity if session is not None else "",
                "page_token": session.page_token if session is not None else "",
                "permissions": self._logins.permissions(session, request.headers),
            }
        )

    def _page(self, request: Request, wanted: str, problem: str, status: int = 200, notice: str = "") -> Response:
        client = request.client.host if request.client is not None else ""
        # A proxy on this machine may encrypt without saying so.
        is_encrypted = request.url.scheme == "https" or is_loopback(client)
        names = self._logins.rights.login_providers()
        content = login_page(names, wanted, problem=problem, is_encrypted=is_encrypted, notice=notice)
        return HTMLResponse(content, status, HEADERS)

    async def _record(self, request: Request, grant: Grant, way: str) -> None:
        """The log-in takes place after it is recorded."""
        name = grant.identity.name
        log.info("logged in to the console", identity=name, way=way)
        if self._service.audit is not None:
            attempt = await self._service.audit.begin(_actor(request, name), "console.login", way, {})
            await attempt.ended()

    def _refused(self, request: Request, way: str, error: IsochroneError, credential: str) -> None:
        """``credential``: of the login. It may prove who asks, and give too little."""
        if self._service.audit is not None:
            name = self._logins.rights.name_of({"authorization": credential})
            self._service.audit.refused(_actor(request, name), "console.login", way, {"error": error.code})


def _actor(request: Request, name: str) -> Actor:
    """``name``: of the identity that is proved; "": none is."""
    address = request.client.host if request.client is not None else ""
    return Actor(name, name.partition(":")[0], address) if name else anonymous(address)


def _session_of(request: Request) -> Session | None:
    session = getattr(request.state, "session", None)
    return session if isinstance(session, Session) else None


def _logged_in(request: Request, session: Session, response: Response) -> Response:
    set_cookie(response, request.headers, SESSION_COOKIE, session.id, is_secure=session.is_secure)
    return response


def _answer(request: Request) -> Mapping[str, str]:
    """The parameters of a callback; a parameter that comes twice makes it none (RFC 6749, section 3.1)."""
    pairs = request.query_params.multi_items()
    return dict(pairs) if len(pairs) == len(dict(pairs)) <= _MOST_FIELDS else {}


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form; none of one that is too large or no form."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MOST_FORM:
            return {}
    try:
        return dict(parse_qsl(content.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}


def _status(error: IsochroneError) -> int:
    return 403 if isinstance(error, LoginFailed) else error.http_status


def _json(content: Mapping[str, object]) -> Response:
    return Response(msgspec.json.encode(content), headers=_NO_STORE, media_type="application/json")
