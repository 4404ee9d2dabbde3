"""The sessions of one controller: which credential each logged-in browser has. Pure; times are of a monotonic clock.

A session lends its browser the credential that it logged in with, and no right: what the credential may do is decided
for each request, by the same rules as for every other caller.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Seconds after which a session ends that no request and no open page has used.
IDLE_SECONDS: Final = 3600.0
#: Seconds after which a session ends in any case: people log in once a day.
LONGEST_SECONDS: Final = 12 * 3600.0
#: Sessions of one controller, and of one identity: whoever has a token must not be able to end the sessions of others.
MOST: Final = 1000
MOST_OF_ONE: Final = 20
#: Bytes of randomness in an id and in the token of its pages.
_RANDOM_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Renewal:
    """How a login at a provider goes on."""

    #: The provider's name in the access file.
    provider: str
    subject: str
    refresh_token: str = field(repr=False)
    #: When the credential expires, in seconds since 1970.
    expires: float


@dataclass(slots=True)
class Session:
    #: The value of its cookie.
    id: str = field(repr=False)
    #: What the pages send with changes: another site can send the cookie, but cannot read this.
    page_token: str = field(repr=False)
    #: The value of ``Authorization``.
    credential: str = field(repr=False)
    #: The name of the identity, as the log-in proved it.
    identity: str
    #: Made over HTTPS: its cookie counts under the name that only HTTPS can set.
    is_secure: bool
    #: The provider that it logged in at; "": with an API token.
    provider: str
    #: None: the credential cannot be renewed.
    renewal: Renewal | None
    began: float
    used: float

    def is_page_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.page_token.encode())


class Sessions:
    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        #: Those used last are at the end.
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._sessions.values()])

    def begin(
        self,
        credential: str,
        identity: str,
        now: float,
        *,
        is_secure: bool = False,
        provider: str = "",
        renewal: Renewal | None = None,
    ) -> Session:
        """A session with an id that nobody has seen. Where there are too many, the one that rested longest ends."""
        self.end_old(now)
        own = [each for each in self._sessions.values() if each.identity == identity]
        if len(own) >= self._most_of_one:
            self.end(own[0].id)
        if len(self._sessions) >= self._most:
            self.end(next(iter(self._sessions)))
        made, page_token = (secrets.token_urlsafe(_RANDOM_BYTES) for _ in range(2))
        session = Session(made, page_token, credential, identity, is_secure, provider, renewal, now, now)
        self._sessions[made] = session
        return session

    def find(self, given: str, now: float) -> Session | None:
        """The session of a cookie; asking for it uses it."""
        session = self._sessions.get(given)
        if session is None:
            return None
        if _is_over(session, now):
            self.end(given)
            return None
        session.used = now
        self._sessions[given] = self._sessions.pop(given)
        return session

    def end(self, given: str) -> Session | None:
        """The session that has ended; None: there was none."""
        return self._sessions.pop(given, None)

    def end_old(self, now: float) -> None:
        for session in self:
            if _is_over(session, now):
                self.end(session.id)


def _is_over(session: Session, now: float) -> bool:
    return now - session.used >= IDLE_SECONDS or now - session.began >= LONGEST_SECONDS
