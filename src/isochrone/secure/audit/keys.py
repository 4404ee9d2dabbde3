"""The key of the audit log: it seals the end of the chain, and hashes redacted fields.

Both uses have keys of their own, derived from the file's: a hash of an agent's name proves nothing about a seal.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from isochrone.errors import FlagError

#: Bytes: below, it could be guessed; above, it is some other file.
_LEAST: Final = 16
_MOST: Final = 4096
_REDACTED_DIGITS: Final = 24


class AuditKey:
    """Derived keys. Their bytes are never shown."""

    __slots__ = ("_redacting", "_sealing")

    def __init__(self, secret: bytes) -> None:
        self._sealing = hmac.digest(secret, b"isochrone audit seal 1", "sha256")
        self._redacting = hmac.digest(secret, b"isochrone audit redaction 1", "sha256")

    def seal(self, message: bytes) -> str:
        return hmac.new(self._sealing, message, hashlib.sha256).hexdigest()

    def is_seal(self, message: bytes, given: str) -> bool:
        return hmac.compare_digest(self.seal(message).encode(), given.encode())

    def redacted(self, value: str) -> str:
        """The same for the same value, so that an agent is recognised and not named."""
        digest = hmac.new(self._redacting, value.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
        return f"hash:{digest[:_REDACTED_DIGITS]}"


def read_key(file: str, flag: str = "--audit-key") -> AuditKey | None:
    """Of a file with any bytes, without white space at the ends; "": no key. Raises ``FlagError``."""
    if not file:
        return None
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise FlagError(flag, "a file that can be read", f"{file} ({error.strerror or error})") from None
    if not _LEAST <= len(secret) <= _MOST:
        given = f"{file}, which has {len(secret)}"
        raise FlagError(flag, f"a file of {_LEAST} to {_MOST} bytes, as 'openssl rand -hex 32' writes one", given)
    return AuditKey(secret)
