"""Decrypts one version into a directory: all of it or, if a file is not what was encrypted, an error.

Whatever is wrong is found before anything but this module reads a byte. Raises ``EncryptionRefused`` with a reason for
people, which names the model, the version and the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.encrypted.names import HEADER, SUFFIX, key_name
from isochrone.secure.encryption.failures import EncryptionRefused
from isochrone.secure.encryption.header import MAX_BYTES, Header, check_proof, decode_header, file_name
from isochrone.secure.encryption.library import Damaged
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.secure.encryption.streams import decrypt, encrypted_size
from isochrone.secure.encryption.wrapping import WrappedKey, decode_key


def read_header(model: str, version: int, stored: Path) -> Header:
    """Of a version in the directory ``stored``. It is not proven yet."""
    try:
        header = decode_header(_content(stored / HEADER, MAX_BYTES))
    except EncryptionRefused as refused:
        raise refused.within(_name(model, version), " is refused: ") from None
    if (header.model, header.version) != (model, str(version)):
        given = f"{header.model}/{header.version}"
        raise _refused(model, version, f"it was encrypted as {given}; encrypt it under its own name and number")
    return header


def read_key(model: str, version: int, directory: Path) -> WrappedKey:
    """``directory``: the model's."""
    try:
        return decode_key(_content(directory / key_name(version), MAX_BYTES))
    except EncryptionRefused as refused:
        raise refused.within(_name(model, version), " is refused: ") from None


def data_key(header: Header, wrapped: WrappedKey, keys: ModelKeys) -> bytes:
    """The key of a version, if its header is the one that was encrypted with it."""
    model, version = header.model, int(header.version)
    try:
        found = keys.unwrap(wrapped, header.model, header.version)
    except EncryptionRefused as refused:
        raise refused.within(_name(model, version), " cannot be decrypted: ") from None
    if not check_proof(header, found):
        raise _refused(model, version, f"{HEADER} was changed, or {key_name(version)} is the key of another version")
    return found


def check_files(header: Header, stored: Path) -> None:
    """Whether the files that the header lists are there, in their sizes, and no others."""
    model, version = header.model, int(header.version)
    present = {os.fsdecode(relative): path for relative, path in regular_files(stored)}
    present.pop(HEADER, None)
    for file in header.files:
        if file.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in file.split("/")):
            raise _refused(model, version, f"its header lists {file!r}, which leads out of the version")
        path = present.pop(file + SUFFIX, None)
        if path is None:
            raise _refused(model, version, f"{file + SUFFIX!r} is missing")
        if path.stat().st_size != encrypted_size(header.files[file]):
            raise _refused(model, version, f"{file + SUFFIX!r} has another size than was encrypted")
    for file in sorted(present):
        raise _refused(model, version, f"{file!r} is not among the files that were encrypted; remove it")


def decrypt_files(header: Header, key: bytes, stored: Path, target: Path) -> None:
    """Writes the plain files below ``target``, which must be empty. After an error, the caller removes it."""
    check_files(header, stored)
    for file, size in header.files.items():
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open(stored / (file + SUFFIX)) as source, path.open("xb") as plain:
            try:
                found = decrypt(key, file_name(header, file), source, plain.write)
            except Damaged:
                found = -1
        if found != size:
            reason = f"{file + SUFFIX!r} is not what was encrypted: it was changed, cut or taken from another place"
            raise _refused(header.model, int(header.version), reason)


def _open(path: Path) -> BinaryIO:
    # A pipe in the file's place must not block.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a regular file", str(path))
    return file


def _content(path: Path, most: int) -> bytes:
    """One byte more than is allowed, of a larger file."""
    try:
        with _open(path) as file:
            return file.read(most + 1)
    except OSError as error:
        raise EncryptionRefused(f"{path.name} cannot be read: {error.strerror or error}") from None


def _name(model: str, version: int) -> str:
    return f"model '{model}' version {version}"


def _refused(model: str, version: int, reason: str) -> EncryptionRefused:
    return EncryptionRefused(f"{_name(model, version)} is refused: {reason}")
