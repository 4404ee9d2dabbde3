"""The files of a version that a signature covers, by their paths in the model's directory.

They are those of the digest, and warm-up data: every file that a load reads. The digest has one completed
configuration; a signature has the files that it comes from, since a worker's flags choose among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.repository.config_files import CONFIG_FILE, CONFIGS
from isochrone.models.repository.digest import named_files, regular_files


def signature_name(version: int) -> str:
    """The file of a signature in the model's directory. Triton ignores files there, stores and manifests bring them."""
    return f"{version}.sig"


def covered_files(directory: Path, version: int) -> list[str]:
    """What a signature made now would cover, sorted. Raises ``ConfigError``."""
    found = set(files_of_version(directory, version))
    for name in configurations(directory):
        found.add(name)
        config, _ = parse_text(_read(directory / name), str(directory / name))
        found |= named_files(config) | _warmup_files(config)
    for name in found:
        if not is_inside(name):
            raise ConfigError(str(directory), "files", "names in UTF-8 that do not lead out of the model", repr(name))
    if not found:
        raise ConfigError(str(directory / str(version)), "files", "at least one file, or a config.pbtxt", "none")
    return sorted(found)


def files_of_version(directory: Path, version: int) -> Iterator[str]:
    """Every file of the version's own directory. Python's caches are left out, and nobody loads them."""
    for relative, _ in regular_files(directory / str(version)):
        yield f"{version}/{os.fsdecode(relative)}"


def is_inside(name: str) -> bool:
    """Whether a path stays in the directory that it is relative to."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return all(part not in ("", ".", "..") and "\0" not in part for part in name.split("/"))


def configurations(directory: Path) -> list[str]:
    names = [CONFIG_FILE] if os.path.lexists(directory / CONFIG_FILE) else []
    folder = directory / CONFIGS
    if folder.is_dir():
        names += sorted(f"{CONFIGS}/{path.name}" for path in folder.iterdir() if path.suffix == ".pbtxt")
    return names


def _warmup_files(config: model_config_pb2.ModelConfig) -> set[str]:
    files = (given.input_data_file for sample in config.model_warmup for given in sample.inputs.values())
    return {f"warmup/{file}" for file in files if file}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), "file", "a readable file", error.strerror or str(error)) from None
