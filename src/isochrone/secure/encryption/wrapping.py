"""The wrapped key of a version: its data key, encrypted under a key-encryption key of the operator. Pure.

A local key encrypts it with AES-256-GCM, bound to the names of model and version. A program, such as one that asks a
KMS, wraps it as it likes: its text is opaque here.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final, Literal

import msgspec

from isochrone.secure.encryption.failures import EncryptionRefused
from isochrone.secure.encryption.header import framed
from isochrone.secure.encryption.library import Cipher, Damaged
from isochrone.secure.encryption.streams import KEY_BYTES

LOCAL: Final = "aes-256-gcm"
COMMAND: Final = "command"
MAX_BYTES: Final = 64 << 10
_NONCE: Final = 12
_ID_BYTES: Final = 8


class WrappedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file ``3.wrapped-key``."""

    by: Literal["aes-256-gcm", "command"]
    #: Which key wrapped it.
    id: str
    wrapped: str
    format: Literal[1] = 1


def key_id(key: bytes) -> str:
    """A name of a local key that reveals nothing of it."""
    return hashlib.sha256(b"isochrone model key 1\0" + key).hexdigest()[: 2 * _ID_BYTES]


def wrap(key: bytes, data_key: bytes, model: str, version: str) -> WrappedKey:
    identity, nonce = key_id(key), os.urandom(_NONCE)
    sealed = Cipher(key).encrypt(nonce, data_key, framed(b"key", identity, model, version))
    return WrappedKey(LOCAL, identity, base64.b64encode(nonce + sealed).decode())


def unwrap(key: bytes, wrapped: WrappedKey, model: str, version: str) -> bytes | None:
    """The data key; None: it is not this key, this model or this version."""
    try:
        content = base64.b64decode(wrapped.wrapped, validate=True)
        found = Cipher(key).decrypt(content[:_NONCE], content[_NONCE:], framed(b"key", wrapped.id, model, version))
    except (Damaged, ValueError):
        return None
    return found if len(found) == KEY_BYTES else None


def encode_key(wrapped: WrappedKey) -> bytes:
    return msgspec.json.format(msgspec.json.encode(wrapped), indent=1) + b"\n"


def decode_key(content: bytes) -> WrappedKey:
    """Raises ``EncryptionRefused`` with a reason that does not name the version."""
    try:
        if len(content) > MAX_BYTES:
            raise ValueError
        return msgspec.json.decode(content, type=WrappedKey)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise EncryptionRefused("the file of its key is no wrapped key") from None
