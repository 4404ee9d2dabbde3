"""The backends that a configuration can name: spellings, platforms and model files. A new backend needs a row here."""

from __future__ import annotations

from typing import NamedTuple

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.suggestions import suggestion


class Backend(NamedTuple):
    """One backend, as config.pbtxt can name it.

    A completed configuration states the first name and the first platform, which are Triton's: tools that read it find
    the words they know, and two spellings of one backend do not give two digests.
    """

    names: tuple[str, ...]
    platforms: tuple[str, ...]
    #: Names of the model's file, preferred first.
    files: tuple[str, ...]


#: By the short names that the rest of the code uses.
BACKENDS = {
    "onnx": Backend(("onnxruntime", "onnx"), ("onnxruntime_onnx",), ("model.onnx",)),
    # An exported program before TorchScript.
    "torch": Backend(("pytorch", "torch", "libtorch"), ("pytorch_libtorch",), ("model.pt2", "model.pt")),
    "python": Backend(("python",), ("", "python"), ("model.py",)),
    "ensemble": Backend(("ensemble",), ("ensemble",), ()),
}
_BY_NAME = {name: short for short, backend in BACKENDS.items() for name in backend.names}
_BY_PLATFORM = {platform: short for short, backend in BACKENDS.items() for platform in backend.platforms if platform}


def backend_name(config: model_config_pb2.ModelConfig, where: str = "config.pbtxt") -> str:
    """The short name of the backend that a configuration states as ``backend`` or ``platform``."""
    backend = _known(config.backend, _BY_NAME, "backend", where)
    platform = _known(config.platform, _BY_PLATFORM, "platform", where)
    if backend and platform and backend != platform:
        raise ConfigError(where, "platform", f"one that fits backend '{config.backend}'", f"'{config.platform}'")
    name = backend or platform
    if config.HasField("ensemble_scheduling"):
        if name not in ("", "ensemble"):
            key, given = ("backend", config.backend) if backend else ("platform", config.platform)
            raise ConfigError(where, key, "'ensemble', since ensemble_scheduling is set", f"'{given}'")
        return "ensemble"
    if not name:
        raise ConfigError(where, "backend", f"one of {', '.join(sorted(_BY_NAME))}", "''")
    return name


def _known(value: str, known: dict[str, str], key: str, where: str) -> str:
    if not value:
        return ""
    if value not in known:
        raise ConfigError(where, key, suggestion(value, sorted(known), key), f"'{value}'")
    return known[value]
