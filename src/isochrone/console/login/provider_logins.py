"""Asks the providers: where their login page is, for the tokens of an answer and renewed ones, and to end a login."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.console.login.attempts import Attempt
from isochrone.console.login.logins import Logins
from isochrone.console.login.sessions import Renewal, Session
from isochrone.console.places import LOGIN_CALLBACK
from isochrone.errors import NotFound, Unavailable
from isochrone.secure.oidc.login.code_request import CodeRequest
from isochrone.secure.oidc.login.failures import LoginFailed, Refused
from isochrone.secure.oidc.login.flows import Login, log_in_with_answer, login_endpoint, renew, revoke
from isochrone.secure.oidc.settings import Provider

log = structlog.get_logger(__name__)

#: Questions to providers at once. Everybody who reaches the controller can cause them.
_MOST: Final = 8
#: Seconds for which the address of a provider's login page is remembered.
_REMEMBERED_SECONDS: Final = 300.0
#: Seconds before the end of a token at which it is renewed, and between two attempts.
_MARGIN: Final = 30.0
_PAUSE: Final = 10.0
_INTERVAL: Final = 1.0


class ProviderLogins:
    """Of one controller, in the event loop that serves it."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins
        self._asking = 0
        #: The address of the login page without its query, and when it was asked for.
        self._pages: dict[str, tuple[Provider, str, float]] = {}
        self._tasks = BackgroundTasks()
        #: By id of a session: when its last renewal began.
        self._renewed: dict[str, float] = {}

    async def begin(self, name: str, next_page: str, origin: str) -> tuple[Attempt, str]:
        """A login, and the address that the browser goes to. ``origin``: this site's, as the browser knows it."""
        provider = self._logins.rights.login_providers().get(name)
        if provider is None:
            raise NotFound("the access file has no such provider with a client_id")
        request = CodeRequest.new(provider, f"{origin}{LOGIN_CALLBACK}")
        endpoint = await self._page(name, request)
        is_secure, now = origin.startswith("https:"), self._logins.clock()
        return self._logins.attempts.begin(request, name, next_page, is_secure, now), request.url(endpoint)

    async def finish(self, attempt: Attempt, answer: Mapping[str, str]) -> Login:
        """The verified login of a provider's answer."""
        with self._question():
            return await log_in_with_answer(attempt.request, answer)

    def end(self, session: Session) -> None:
        """End the login at the provider too, in the background."""
        provider = self._provider_of(session.renewal)
        if provider is not None and session.renewal is not None:
            self._tasks.start(self._revoke(provider, session.renewal.refresh_token))

    async def run(self) -> None:
        """Renew the tokens of sessions before they expire, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                self._renew_due()
        finally:
            await self._tasks.end()

    def _renew_due(self) -> None:
        sessions, now = self._logins.sessions, self._logins.clock()
        sessions.end_old(now)
        open_now = {session.id for session in sessions}
        self._renewed = {known: at for known, at in self._renewed.items() if known in open_now}
        for session in sessions:
            due = session.renewal is not None and session.renewal.expires - _MARGIN <= time.time()
            if due and len(self._tasks) < _MOST and now - self._renewed.get(session.id, -_PAUSE) >= _PAUSE:
                self._renewed[session.id] = now
                self._tasks.start(self._renew(session))

    async def _renew(self, session: Session) -> None:
        renewal, provider = session.renewal, self._provider_of(session.renewal)
        if renewal is None or provider is None:
            return
        try:
            login = await renew(provider, renewal.refresh_token, renewal.subject)
        except Refused as error:
            # It still has its token, until that expires.
            session.renewal = None
            log.info("a session of the console is not renewed", identity=session.identity, reason=str(error))
        except LoginFailed as error:
            log.warning("a session of the console cannot be renewed", identity=session.identity, reason=str(error))
        else:
            session.credential = f"Bearer {login.token}"
            session.renewal = Renewal(renewal.provider, renewal.subject, login.refresh_token, login.claims.expires)
            if not self._logins.is_open(session):
                await self._revoke(provider, login.refresh_token)

    async def _revoke(self, provider: Provider, refresh_token: str) -> None:
        try:
            await revoke(provider, refresh_token)
        except LoginFailed as error:
            log.warning("a login was not ended at its provider", issuer=provider.issuer, reason=str(error))

    def _provider_of(self, renewal: Renewal | None) -> Provider | None:
        return self._logins.rights.login_providers().get(renewal.provider) if renewal is not None else None

    async def _page(self, name: str, request: CodeRequest) -> str:
        known = self._pages.get(name)
        now = self._logins.clock()
        if known is not None and known[0] == request.provider and now - known[2] < _REMEMBERED_SECONDS:
            return known[1]
        with self._question():
            found = await login_endpoint(request.provider)
        self._pages[name] = request.provider, found, now
        return found

    @contextmanager
    def _question(self) -> Iterator[None]:
        if self._asking >= _MOST:
            raise Unavailable(f"{_MOST} logins wait for an answer of the provider; try again")
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
