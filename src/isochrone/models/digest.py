"""The name of a model version that two machines agree on: SHA-256 of its artifact bytes and its
configuration.

The worker reports it in metadata, index and metrics; the control plane gives no traffic to a worker whose
digest differs from the committed one. It must therefore depend on nothing but what changes answers: never on
mtimes, absolute paths, directory order or Python's caches.
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

if TYPE_CHECKING:
    from hashlib import _Hash

_CHUNK = 1 << 20
_CACHES = frozenset({"__pycache__"})


def digest(config: model_config_pb2.ModelConfig, version_directory: Path) -> str:
    """SHA-256 in hexadecimal over a completed configuration and every regular file of the version.

    Files beside the version that the configuration names and that change answers (labels, initial state)
    count too.
    """
    total = hashlib.sha256(b"isochrone model version 1\n")
    _frame(total, b"config", config.SerializeToString(deterministic=True))
    for name in sorted(_named_files(config)):
        _add_file(total, b"named", os.fsencode(name), version_directory.parent / name)
    for relative, path in sorted(regular_files(version_directory)):
        _add_file(total, b"file", relative, path)
    return total.hexdigest()


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


def _named_files(config: model_config_pb2.ModelConfig) -> set[str]:
    names = {output.label_filename for output in config.output if output.label_filename}
    for state in config.sequence_batching.state:
        names.update(f"initial_state/{initial.data_file}" for initial in state.initial_state if initial.data_file)
    return names


def _frame(total: _Hash, kind: bytes, *parts: bytes) -> None:
    # Each part is preceded by its length, so that no two sequences of parts run together to the same bytes.
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
