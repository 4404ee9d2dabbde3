"""The backends that a configuration can name, and every spelling of them."""

from __future__ import annotations

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.suggestions import suggestion

_BACKENDS = {
    "onnxruntime": "onnx",
    "onnx": "onnx",
    "python": "python",
    "pytorch": "torch",
    "torch": "torch",
    "libtorch": "torch",
    "ensemble": "ensemble",
}
_PLATFORMS = {
    "onnxruntime_onnx": "onnx",
    "python": "python",
    "pytorch_libtorch": "torch",
    "ensemble": "ensemble",
}


def backend_name(config: model_config_pb2.ModelConfig, where: str = "config.pbtxt") -> str:
    """``onnx``, ``python``, ``torch`` or ``ensemble``, from whichever spelling the configuration uses."""
    backend = _known(config.backend, _BACKENDS, "backend", where)
    platform = _known(config.platform, _PLATFORMS, "platform", where)
    if backend and platform and backend != platform:
        raise ConfigError(where, "platform", f"one that fits backend '{config.backend}'", f"'{config.platform}'")
    name = backend or platform
    if config.HasField("ensemble_scheduling"):
        if name not in ("", "ensemble"):
            key, given = ("backend", config.backend) if backend else ("platform", config.platform)
            raise ConfigError(where, key, "'ensemble', since ensemble_scheduling is set", f"'{given}'")
        return "ensemble"
    if not name:
        raise ConfigError(where, "backend", f"one of {', '.join(sorted(_BACKENDS))}", "''")
    return name


def _known(value: str, known: dict[str, str], key: str, where: str) -> str:
    if not value:
        return ""
    if value not in known:
        raise ConfigError(where, key, suggestion(value, sorted(known), key), f"'{value}'")
    return known[value]
