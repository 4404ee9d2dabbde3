"""Reads a secret from a file that a flag names. Its bytes are in no error."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isochrone.errors import FlagError

#: Bytes: below, it could be guessed; above, it is some other file.
_LEAST: Final = 16
_MOST: Final = 4096


def read_secret(file: str | Path, flag: str) -> bytes:
    """The bytes of the file without white space at the ends. Raises ``FlagError``."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise FlagError(flag, "a file that can be read", f"{file} ({error.strerror or error})") from None
    if not _LEAST <= len(secret) <= _MOST:
        given = f"{file}, which has {len(secret)}"
        raise FlagError(flag, f"a file of {_LEAST} to {_MOST} bytes, as 'openssl rand -hex 32' writes one", given)
    return secret
