"""The digest of a model version: SHA-256 of its files and its configuration, equal on every machine.

The worker reports it in metadata, index and metrics; a worker whose digest differs from the committed one gets no
traffic. It depends only on what changes answers: never on mtimes, absolute paths, directory order, Python's caches, or
other versions of the model.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.file_stamp import FileStamp, stamp

if TYPE_CHECKING:
    from hashlib import _Hash

_Stamps = dict[Path, FileStamp]

_CHUNK = 1 << 20
_CACHES = frozenset({"__pycache__"})
_MAX_REMEMBERED = 1024


def digest(config: model_config_pb2.ModelConfig, version_directory: Path) -> str:
    """SHA-256 in hexadecimal over a completed configuration and every regular file of the version.

    It includes files outside the version that the configuration names and that change answers: labels, initial state.
    """
    total = hashlib.sha256(b"isochrone model version 1\n")
    _frame(total, b"config", _canonical(config))
    for name in sorted(named_files(config)):
        _add_file(total, b"named", os.fsencode(name), version_directory.parent / name)
    for relative, path in sorted(regular_files(version_directory)):
        _add_file(total, b"file", relative, path)
    return total.hexdigest()


class DigestMemory:
    """Digests, cached while the files do not change.

    A controller requests loaded versions repeatedly, and hashing takes about a second per gigabyte.
    """

    def __init__(self) -> None:
        #: (configuration, directory) → stamps of its files, and the digest.
        self._known: dict[tuple[bytes, Path], tuple[_Stamps, str]] = {}

    def digest(self, config: model_config_pb2.ModelConfig, version_directory: Path) -> str:
        # Before the files are read: a file that changes meanwhile differs the next time.
        stamps = _stamps(config, version_directory)
        key = (_canonical(config), version_directory)
        known = self._known.get(key)
        if known is not None and known[0] == stamps:
            return known[1]
        found = digest(config, version_directory)
        if all(each.is_settled for each in stamps.values()):
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[key] = (stamps, found)
        return found


def _canonical(config: model_config_pb2.ModelConfig) -> bytes:
    """The serialised configuration without ``version_policy``: other versions change no answer of this one."""
    canonical = model_config_pb2.ModelConfig()
    canonical.CopyFrom(config)
    canonical.ClearField("version_policy")
    return bytes(canonical.SerializeToString(deterministic=True))


def _stamps(config: model_config_pb2.ModelConfig, version_directory: Path) -> _Stamps:
    files = {path: stamp(path) for path in (version_directory.parent / name for name in named_files(config))}
    files.update((path, stamp(path)) for _, path in regular_files(version_directory))
    return files


def regular_files(directory: Path) -> Iterator[tuple[bytes, Path]]:
    """Every regular file below ``directory``, with its relative path; symbolic links are followed, loops are not."""
    yield from _walk(directory, b"", frozenset())


def _walk(directory: Path, prefix: bytes, above: frozenset[tuple[int, int]]) -> Iterator[tuple[bytes, Path]]:
    try:
        identity = directory.stat()
        here = (identity.st_dev, identity.st_ino)
        if here in above:
            return
        entries = list(os.scandir(directory))
        for entry in entries:
            mode = entry.stat().st_mode
            relative = prefix + os.fsencode(entry.name)
            if stat.S_ISREG(mode):
                yield relative, Path(entry.path)
            elif stat.S_ISDIR(mode) and entry.name not in _CACHES:
                yield from _walk(Path(entry.path), relative + b"/", above | {here})
    except OSError as error:
        given = error.strerror or str(error)
        raise ConfigError(str(error.filename or directory), "files", "a readable directory", given) from None


def named_files(config: model_config_pb2.ModelConfig) -> set[str]:
    """Files outside the version, relative to the model's directory, that change answers."""
    names = {output.label_filename for output in config.output if output.label_filename}
    for state in config.sequence_batching.state:
        names.update(f"initial_state/{initial.data_file}" for initial in state.initial_state if initial.data_file)
    return names


def _frame(total: _Hash, kind: bytes, *parts: bytes) -> None:
    # Each part is preceded by its length, so that different parts never give the same bytes.
    total.update(kind)
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)


def _add_file(total: _Hash, kind: bytes, relative: bytes, path: Path) -> None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _frame(total, kind, relative, size.to_bytes(8, "big"))
            read = 0
            while chunk := file.read(_CHUNK):
                read += len(chunk)
                total.update(chunk)
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
    if read != size:
        raise ConfigError(
            str(path), "file", f"{size} bytes, as when it was opened", f"{read} bytes: it is being written"
        )
