"""What the library ``cryptography`` gives: AES-256-GCM, and HKDF with SHA-256.

It is in the extra ``secure`` and imported at the first use: most workers have no encrypted versions.
"""

from __future__ import annotations

from isochrone.errors import Unsupported

#: Bytes that a tag adds.
TAG = 16


class Damaged(Exception):
    """Bytes are not what was encrypted with this key, in this place, under this name."""


class Cipher:
    """AES-256-GCM with one key."""

    __slots__ = ("_gcm", "_invalid")

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise _missing() from None
        self._gcm = AESGCM(key)
        # Shorter than a tag, some releases raise ValueError.
        self._invalid = (InvalidTag, ValueError)

    def encrypt(self, nonce: bytes, plain: bytes, name: bytes) -> bytes:
        return self._gcm.encrypt(nonce, plain, name)

    def decrypt(self, nonce: bytes, content: bytes, name: bytes) -> bytes:
        """Raises ``Damaged``."""
        try:
            return self._gcm.decrypt(nonce, content, name)
        except self._invalid:
            raise Damaged from None


def derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """32 bytes."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise _missing() from None
    return HKDF(SHA256(), 32, salt, purpose).derive(key)


def _missing() -> Unsupported:
    return Unsupported("encrypted versions need the package cryptography: pip install 'isochrone[secure]'")
