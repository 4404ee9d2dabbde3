"""API tokens: made once, kept as a digest.

A token is 32 random bytes behind a prefix that secret scanners find. So much randomness needs no slow hash: nobody
finds it by trying, and a check costs a microsecond.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "iso_"
#: Characters of a credential that are looked at.
LONGEST: Final = 8192


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What an access file says of one token."""

    name: str
    #: SHA-256 of the whole token, in hexadecimal.
    sha256: str
    #: Seconds since 1970; None: it does not expire.
    expires: float | None = None
    groups: frozenset[str] = frozenset()
    revoked: bool = False

    def refusal(self, now: float) -> str:
        """Why it proves nothing, ``now`` in seconds since 1970; "": it proves its name."""
        if self.revoked:
            return f"{self.name} is revoked"
        if self.expires is not None and self.expires <= now:
            return f"{self.name} has expired"
        return ""


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
