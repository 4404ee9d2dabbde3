"""The caller's token: the one rule of commands and clients for ``ISOCHRONE_API_TOKEN``. No error contains a token."""

from __future__ import annotations

import os
import re
from typing import Final

from isochrone.errors import InvalidArgument

VARIABLE: Final = "ISOCHRONE_API_TOKEN"
#: More would be another header, or a value that gRPC refuses.
_TOKEN = re.compile(r"[!-~]+")


def token_fields(token: str | None = None) -> dict[str, str]:
    """The header with a token; None: that of the environment. White space around it is left out. Empty: no token."""
    given = os.environ.get(VARIABLE, "") if token is None else token
    if not (text := given.strip()):
        return {}
    if not _TOKEN.fullmatch(text):
        where = VARIABLE if token is None else "token"
        raise InvalidArgument(f"{where}: expected ASCII characters without white space, given others")
    return {"authorization": f"Bearer {text}"}
