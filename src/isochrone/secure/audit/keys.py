"""The key of the audit log: it seals the end of the chain, and hashes redacted fields.

Both uses have keys of their own, derived from the file's: a hash of an agent's name proves nothing about a seal.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from isochrone.secure.secret_file import read_secret

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
    return AuditKey(read_secret(file, flag)) if file else None
