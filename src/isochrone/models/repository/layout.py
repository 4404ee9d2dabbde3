"""Mistakes in the layout of a model repository that file names reveal. It reads directories and opens no model.

``isochrone validate``, ``isochrone serve`` and ``isochrone apply`` use it before anything is loaded.
"""

from __future__ import annotations

from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.backends import BACKENDS, backend_name, default_model_files
from isochrone.models.repository.config_files import CONFIG_FILE
from isochrone.models.repository.encrypted.names import either
from isochrone.models.repository.versions import find_versions

#: The layout of a repository, for errors.
EXPECTED = "models in Triton's layout, such as detector/config.pbtxt and detector/1/model.onnx"


def missing_model_file(config: model_config_pb2.ModelConfig, version_directory: Path) -> ConfigError | None:
    """The error of a version without the file of its backend; None if it is present or the backend is unknown."""
    names = model_files(config)
    if not names or any((version_directory / name).exists() for name in either(names)):
        return None
    return ConfigError(str(version_directory), "model file", " or ".join(names), "no such file")


def model_files(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    """The files of which a version must have one; (): it needs none, or its backend is unknown."""
    try:
        backend = backend_name(config)
    except ConfigError:
        return ()
    given = str(config.default_model_filename)
    if not BACKENDS[backend].files:
        return ()
    return (given,) if given else default_model_files(backend, config)


def is_model(path: Path) -> bool:
    """Whether a directory is a model rather than a repository: its versions are directly in it."""
    try:
        versions = [path / str(number) for number in find_versions(path).present]
        # The name of a model may be "1": then the directory "1" contains versions.
        bare = [version for version in versions if not find_versions(version).present]
    except ConfigError:
        return False
    known = either(tuple(name for backend in BACKENDS.values() for name in backend.files))
    has_file = any((version / name).exists() for version in bare for name in known)
    return has_file or (bool(bare) and (path / CONFIG_FILE).is_file())
