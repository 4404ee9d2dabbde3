"""Who may change the fleet over the API: every client, or, where a controller has a token, those that send it.

Reading needs no rights, unless the controller has an access file (``access_rights``). The command line and the console
send the token as ``Authorization: Bearer TOKEN``; both use the same operations, and the check is made here alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isochrone.errors import FlagError, PermissionDenied
from isochrone.secure.access.permissions import FLEET_ADMIN, FLEET_CHANGE
from isochrone.secure.oidc.settings import Provider

#: Bytes of a token: below, it could be guessed; above, it is some other file.
_LEAST, _MOST = 8, 4096
_SCHEME = "bearer "
#: What the one token of a controller is for.
_OF_CHANGES = frozenset((FLEET_CHANGE, FLEET_ADMIN))


@dataclass
class Rights:
    """``token`` "": every client may change the fleet."""

    token: str = field(default="", repr=False)

    @property
    def needs_token(self) -> bool:
        return bool(self.token)

    async def decided(self, headers: Mapping[str, str]) -> None:
        """Return when nothing is being fetched any more that a decision about these headers depends on."""

    def may_change(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers may change the fleet."""
        if not self.token:
            return True
        given = headers.get("authorization", "")
        if not given.lower().startswith(_SCHEME):
            return False
        # In constant time: the duration must not reveal how many characters were right.
        return hmac.compare_digest(given[len(_SCHEME) :].strip().encode(), self.token.encode())

    def name_of(self, headers: Mapping[str, str]) -> str:
        """Who sends a request, as far as it is proved; "": nobody knows."""
        return "token" if self.needs_token and self.may_change(headers) else ""

    def login_provider(self) -> Provider | None:
        """Whose tokens people can log in with; None: nobody can, or of several providers none is theirs."""
        return None

    def require(self, headers: Mapping[str, str], permission: str) -> None:
        """Raise unless a request with these headers may do what needs the permission."""
        if permission in _OF_CHANGES and not self.may_change(headers):
            state = "another one was sent" if "authorization" in headers else "none was sent"
            raise PermissionDenied(
                f"this controller needs a token for changes, and {state}: set ISOCHRONE_API_TOKEN for commands, or "
                "enter it in the console"
            )


def read_rights(file: str, flag: str = "--token-file") -> Rights:
    """The rights of the token in a file; "": no file, and every client may change the fleet."""
    if not file:
        return Rights()
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise FlagError(flag, "a file that can be read", f"{file} ({error.strerror or error})") from None
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not (_LEAST <= len(token) <= _MOST and token.isprintable() and " " not in token):
        expected = f"a file with one word of {_LEAST} to {_MOST} ASCII characters"
        raise FlagError(flag, expected, f"{file}, which has something else")
    return Rights(token)
