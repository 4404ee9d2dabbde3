"""Encrypts one file in chunks with AES-256-GCM, by the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizar 2015).

Every file has a key of its own, derived from the version's key and a random salt, so a nonce is only the number of the
chunk and whether it is the last: chunks that are lost, added, moved or repeated do not decrypt. A file is never in
memory as a whole. What ``decrypt`` has written is authentic, but it is complete only when ``decrypt`` returns.

An encrypted file is ``MAGIC``, the salt, and the chunks, each with its tag. An empty file has one empty chunk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from isochrone.secure.encryption.library import TAG, Cipher, Damaged, derive

MAGIC: Final = b"isochrone-encrypted-file-1\n"
#: Of plain text. It is part of the format: a file cannot choose how much memory its reader needs.
CHUNK: Final = 1 << 20
KEY_BYTES: Final = 32
_SALT: Final = 32
_COUNTER: Final = 11
_PURPOSE: Final = b"isochrone encrypted file 1"

Write = Callable[[bytes], object]


def encrypted_size(plain: int, chunk: int = CHUNK) -> int:
    """Bytes of an encrypted file, by those of the plain one."""
    return len(MAGIC) + _SALT + plain + TAG * max(1, -(-plain // chunk))


def encrypt(key: bytes, name: bytes, source: BinaryIO, write: Write, chunk: int = CHUNK) -> int:
    """Encrypts ``source`` to its end; returns its size. ``name``: what ``decrypt`` must give, too.

    ``source`` must be buffered: a read of fewer bytes than asked is the end.
    """
    salt = os.urandom(_SALT)
    cipher = Cipher(derive(key, salt, _PURPOSE))
    write(MAGIC + salt)
    size = 0
    for number, part, last in _chunks(source, chunk):
        size += len(part)
        write(cipher.encrypt(_nonce(number, last=last), part, name))
    return size


def decrypt(key: bytes, name: bytes, source: BinaryIO, write: Write, chunk: int = CHUNK) -> int:
    """The inverse. Raises ``Damaged``: what was written until then must be thrown away."""
    start = source.read(len(MAGIC) + _SALT)
    if not start.startswith(MAGIC) or len(start) != len(MAGIC) + _SALT:
        raise Damaged
    cipher = Cipher(derive(key, start[len(MAGIC) :], _PURPOSE))
    size = 0
    for number, part, last in _chunks(source, chunk + TAG):
        plain = cipher.decrypt(_nonce(number, last=last), part, name)
        if not plain and number:
            # An encrypted file has one form: no empty chunk ends it.
            raise Damaged
        size += len(plain)
        write(plain)
    return size


def _chunks(source: BinaryIO, size: int) -> Iterator[tuple[int, bytes, bool]]:
    """Each with its number, and whether it is the last; at least one."""
    number, part = 0, source.read(size)
    while following := source.read(size):
        yield number, part, False
        number, part = number + 1, following
    yield number, part, True


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(_COUNTER, "big") + (b"\1" if last else b"\0")
