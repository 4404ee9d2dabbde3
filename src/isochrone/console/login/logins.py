"""Who is logged in at this controller's console, and what they may do at this moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from starlette.datastructures import Headers

from isochrone.console.login.attempts import Attempts
from isochrone.console.login.local import SESSION, cookie_of, own_origin
from isochrone.console.login.sessions import Renewal, Session, Sessions
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.errors import IsochroneError
from isochrone.secure.access.grants import Grant
from isochrone.secure.access.permissions import FLEET_ADMIN, FLEET_CHANGE, FLEET_READ, METRICS, RECORDS
from isochrone.secure.oidc.login.flows import Login

#: What pages show or hide by.
_OF_PAGES: Final = (FLEET_READ, FLEET_CHANGE, FLEET_ADMIN, RECORDS, METRICS)


class Logins:
    """Of one controller; no other one knows its sessions."""

    def __init__(self, rights: AccessRights, clock: Callable[[], float] = time.monotonic) -> None:
        self.rights = rights
        self.clock = clock
        self.sessions = Sessions()
        self.attempts = Attempts()

    def session_of(self, headers: Headers) -> Session | None:
        """The session of a request's cookie. A credential in the request goes before it."""
        if "authorization" in headers or "cookie" not in headers:
            return None
        # What a page that came over HTTPS sends, only a cookie of HTTPS can prove.
        kinds = (True,) if own_origin(headers).startswith("https:") else (True, False)
        for is_secure in kinds:
            given = cookie_of(headers, SESSION, is_secure=is_secure)
            session = self.sessions.find(given, self.clock()) if given else None
            if session is not None and session.is_secure == is_secure:
                return session
        return None

    def is_open(self, session: Session) -> bool:
        return self.sessions.find(session.id, self.clock()) is session

    def refusal(self, session: Session | None, headers: Mapping[str, str]) -> IsochroneError | None:
        """Why a caller may not look at the fleet now; None: it may."""
        try:
            self.rights.require(headers if session is None else credential_of(session), FLEET_READ)
        except IsochroneError as error:
            return error
        return None

    def permissions(self, session: Session | None, headers: Mapping[str, str]) -> list[str]:
        """Of those that the pages know."""
        found = []
        for permission in _OF_PAGES:
            try:
                self.rights.require(headers if session is None else credential_of(session), permission)
                found.append(permission)
            except IsochroneError:
                continue
        return found

    async def accepted(self, credential: str) -> Grant:
        """The grant of a new login. Raises unless it may look at the fleet."""
        grant = self.rights.keeper.grant(credential.encode("utf-8", "replace"))
        # The provider may have signed it with a key that is new here.
        await self.rights.keeper.decided(grant)
        grant.require(FLEET_READ)
        return grant

    def begin(
        self,
        credential: str,
        grant: Grant,
        before: Session | None,
        *,
        is_secure: bool,
        provider: str = "",
        login: Login | None = None,
    ) -> Session:
        """A new session in place of the browser's earlier one."""
        if before is not None:
            self.sessions.end(before.id)
        renewal = None
        if login is not None and login.refresh_token:
            renewal = Renewal(provider, login.claims.subject, login.refresh_token, login.claims.expires)
        return self.sessions.begin(
            credential, grant.identity.name, self.clock(), is_secure=is_secure, provider=provider, renewal=renewal
        )


def credential_of(session: Session) -> Mapping[str, str]:
    """As a request would carry it."""
    return {"authorization": session.credential}
