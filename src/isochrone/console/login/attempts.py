"""Logins at a provider that have begun: what the provider's answer must fit. Pure; times are of a monotonic clock.

An answer counts once, within some minutes, in the browser that began the login. So nobody can make another person's
browser log in as somebody else, and a callback that is replayed finds nothing.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

from isochrone.secure.oidc.login.code_request import CodeRequest

#: Seconds in which somebody enters a password and a second factor.
SECONDS: Final = 600.0
#: Everybody who reaches the controller can begin logins. Beyond these, the oldest is dropped.
MOST: Final = 4096
_RANDOM_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Attempt:
    request: CodeRequest = field(repr=False)
    #: The provider's name in the access file.
    provider: str
    #: The page to show after the login.
    next_page: str
    is_secure: bool
    #: The value of a cookie: only the browser that began the login has it.
    browser: str = field(repr=False)
    began: float


class Attempts:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        #: By state, in the order in which they began.
        self._attempts: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def begin(self, request: CodeRequest, provider: str, next_page: str, is_secure: bool, now: float) -> Attempt:
        for state, known in [*self._attempts.items()]:
            if now - known.began < SECONDS and len(self._attempts) < self._most:
                break
            del self._attempts[state]
        browser = secrets.token_urlsafe(_RANDOM_BYTES)
        attempt = Attempt(request, provider, next_page, is_secure, browser, now)
        self._attempts[request.state] = attempt
        return attempt

    def take(self, state: str, browser: str, now: float) -> Attempt | None:
        """The attempt that an answer belongs to, once; None: there is none, or it began in another browser."""
        attempt = self._attempts.get(state)
        if attempt is None or not hmac.compare_digest(browser.encode(), attempt.browser.encode()):
            return None
        del self._attempts[state]
        return attempt if now - attempt.began < SECONDS else None
