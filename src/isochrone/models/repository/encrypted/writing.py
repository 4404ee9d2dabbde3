"""Encrypts and decrypts versions in a repository, and wraps their keys again. A killed command leaves the old or the
new version, never parts of both.

The staging directory is beside the models, where it changes the fingerprint of none. A version that replaces another is
exchanged with it in one step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isochrone.errors import ConfigError
from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.encrypted.names import HEADER, SUFFIX, is_encrypted, key_name
from isochrone.models.repository.encrypted.opening import data_key, decrypt_files, read_header, read_key
from isochrone.secure.encryption.failures import EncryptionRefused
from isochrone.secure.encryption.header import Header, encode_header, file_name, new_data_key, proven
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.secure.encryption.streams import encrypt
from isochrone.secure.encryption.wrapping import WrappedKey, encode_key
from isochrone.whole_directories import exchange, remove_leftovers, staging, sync, sync_tree
from isochrone.whole_files import write_whole

_STAGING: Final = ".isochrone-encrypt-"


@dataclass(frozen=True, slots=True)
class Written:
    directory: Path
    files: int
    key: WrappedKey | None = None


def encrypt_version(directory: Path, version: int, target: int, keys: ModelKeys) -> Written:
    """Writes version ``version`` of the model in ``directory`` as ``target``, which may be the same number."""
    model, stored = directory.name, directory / str(version)
    if is_encrypted(stored):
        raise EncryptionRefused(f"model '{model}' version {version} is encrypted already; --rewrap gives it a new key")
    files = {os.fsdecode(relative): path for relative, path in sorted(regular_files(stored))}
    for file in files:
        try:
            file.encode()
        except UnicodeEncodeError:
            raise ConfigError(str(stored), "files", "names in UTF-8", repr(file)) from None
        if file.endswith(SUFFIX):
            raise ConfigError(str(stored), "files", f"no name that ends in {SUFFIX}", repr(file))
    _require_absent(directory / str(target), replaces=version == target)
    key = new_data_key()
    wrapped = keys.wrap(key, model, str(target))
    with _staged(directory) as made:
        header = Header(model, str(target), {})
        for file, path in files.items():
            encrypted = made / (file + SUFFIX)
            encrypted.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, encrypted.open("xb") as written:
                header.files[file] = encrypt(key, file_name(header, file), source, written.write)
        (made / HEADER).write_bytes(encode_header(proven(header, key)))
        # First: a key beside a plain version has no effect.
        write_whole(directory / key_name(target), encode_key(wrapped))
        _put(made, directory / str(target), replaces=version == target)
    return Written(directory / str(target), len(files), wrapped)


def decrypt_version(directory: Path, version: int, target: int, keys: ModelKeys) -> Written:
    """The inverse."""
    stored = directory / str(version)
    header, key = _opened(directory, version, keys)
    _require_absent(directory / str(target), replaces=version == target)
    with _staged(directory) as made:
        decrypt_files(header, key, stored, made)
        _put(made, directory / str(target), replaces=version == target)
    if version == target:
        (directory / key_name(version)).unlink(missing_ok=True)
    return Written(directory / str(target), len(header.files))


def rewrap_version(directory: Path, version: int, old: ModelKeys, new: ModelKeys) -> Written:
    """Only ``N.wrapped-key`` changes, so the version's digest and signature stay."""
    header, key = _opened(directory, version, old)
    wrapped = new.wrap(key, header.model, header.version)
    write_whole(directory / key_name(version), encode_key(wrapped))
    return Written(directory / str(version), len(header.files), wrapped)


def _opened(directory: Path, version: int, keys: ModelKeys) -> tuple[Header, bytes]:
    model, stored = directory.name, directory / str(version)
    if not is_encrypted(stored):
        raise EncryptionRefused(f"model '{model}' version {version} is not encrypted")
    header = read_header(model, version, stored)
    return header, data_key(header, read_key(model, version, directory), keys)


@contextlib.contextmanager
def _staged(directory: Path) -> Iterator[Path]:
    """An empty directory on the file system of the model, which may be a link."""
    repository = Path(os.path.realpath(directory)).parent
    remove_leftovers(repository, _STAGING)
    with staging(repository, _STAGING) as place:
        made = place / "version"
        made.mkdir()
        yield made


def _require_absent(target: Path, *, replaces: bool) -> None:
    if not replaces and os.path.lexists(target):
        raise ConfigError(str(target), "directory", "a version that does not exist yet", "one that does")


def _put(made: Path, target: Path, *, replaces: bool) -> None:
    sync_tree(made)
    try:
        if replaces:
            exchange(made, target)
        else:
            os.rename(made, target)
        sync(target.parent)
    except OSError as error:
        expected = "a file system that can exchange two directories; --as-version writes another version"
        if not replaces:
            expected = "a version that can be written"
        raise ConfigError(str(target), "directory", expected, error.strerror or str(error)) from None
