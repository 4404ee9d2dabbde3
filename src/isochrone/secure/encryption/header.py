"""The header of an encrypted version: its files with their sizes, and a proof that the owner of its key listed them.

The proof covers the names of model and version, too: a copy under another name or number does not open. Since only the
version's own key gives it, it also shows that a key is the right one before a file is read. The wrapped key is not in
the header: wrapping it again changes neither the version's digest nor its signature.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

import msgspec

from isochrone.secure.encryption.failures import EncryptionRefused
from isochrone.secure.encryption.library import derive
from isochrone.secure.encryption.streams import KEY_BYTES

_FORMAT: Final = 1
_PURPOSE: Final = b"isochrone encrypted header 1"
#: Bytes of a header: some hundred thousand files.
MAX_BYTES: Final = 16 << 20


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    version: str
    #: Path relative to the version → bytes of the plain file.
    files: dict[str, int]
    #: HMAC with SHA-256 of the rest, in hexadecimal.
    proof: str = ""
    format: int = _FORMAT


def new_data_key() -> bytes:
    return os.urandom(KEY_BYTES)


def proven(header: Header, data_key: bytes) -> Header:
    return msgspec.structs.replace(header, proof=_proof(header, data_key))


def check_proof(header: Header, data_key: bytes) -> bool:
    """Whether this key encrypted this version."""
    return hmac.compare_digest(header.proof.encode(), _proof(header, data_key).encode())


def encode_header(header: Header) -> bytes:
    return msgspec.json.format(msgspec.json.encode(header, order="deterministic"), indent=1) + b"\n"


def decode_header(content: bytes) -> Header:
    """Raises ``EncryptionRefused`` with a reason that does not name the version."""
    if len(content) > MAX_BYTES:
        raise EncryptionRefused(f"its header is larger than {MAX_BYTES} bytes")
    try:
        header = msgspec.json.decode(content, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EncryptionRefused("its header is no header of an encrypted version") from None
    if header.format != _FORMAT:
        raise EncryptionRefused(f"its format is {header.format}, and this release reads format {_FORMAT}")
    return header


def file_name(header: Header, file: str) -> bytes:
    """What the chunks of a file are bound to: they open in no other place."""
    return framed(b"file", header.model, header.version, file)


def framed(kind: bytes, *parts: str) -> bytes:
    """Different parts never give the same bytes."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return kind + b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _proof(header: Header, data_key: bytes) -> str:
    lines = [f"{file}\0{size}" for file, size in sorted(header.files.items())]
    content = framed(b"header", str(header.format), header.model, header.version, *lines)
    return hmac.digest(derive(data_key, b"", _PURPOSE), content, "sha256").hex()
