"""Reads secrets from a file that a flag names. Their bytes are in no error."""

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


def read_secrets(file: str | Path, flag: str) -> tuple[bytes, ...]:
    """The lines of a file of text, or the one secret of another file. Raises ``FlagError``."""
    whole = read_secret(file, flag)
    if not whole.isascii():
        return (whole,)
    lines = tuple(line.strip() for line in whole.splitlines() if line.strip())
    for number, line in enumerate(lines, 1):
        if len(line) < _LEAST:
            given = f"{file}, whose line {number} has {len(line)}"
            raise FlagError(flag, f"a file whose lines have {_LEAST} bytes or more", given)
    return lines
