"""Models that complete their own configuration: Triton's python models with ``auto_complete_config``.

Whether a model does so is decided here, by its text; a server runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from isochrone.models.configuration.backends import backend_name

#: Runs the model of a version directory: the configuration as it completes it.
SelfCompletion = Callable[[model_config_pb2.ModelConfig, Path], model_config_pb2.ModelConfig]

_CLASS, _FUNCTION = b"TritonPythonModel", b"auto_complete_config"


def completes_itself(config: model_config_pb2.ModelConfig, version_directory: Path) -> bool:
    """Whether the model of a completed configuration may complete it further."""
    if backend_name(config) != "python":
        return False
    try:
        source = (version_directory / str(config.default_model_filename)).read_bytes()
    except OSError:
        return False
    return _FUNCTION in source and _CLASS in source
