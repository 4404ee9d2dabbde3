"""The backends that a configuration can name: spellings, platforms and model files. A new backend needs a row here.

Backends of Triton's that are not served are listed too, so that an error says what to do instead of guessing a
misspelling.
"""

from __future__ import annotations

from typing import NamedTuple

from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.ranks import has_ranks
from isochrone.suggestions import suggestion


class Backend(NamedTuple):
    """One backend, as config.pbtxt can name it.

    A completed configuration states the first name and the first platform, which are Triton's: tools that read it find
    the words they know, and two spellings of one backend do not give two digests.
    """

    names: tuple[str, ...]
    platforms: tuple[str, ...]
    #: Names of the model's file, preferred first; empty: the model has none.
    files: tuple[str, ...]
    #: Whether a file of such a name tells the backend if the configuration does not.
    told_by_file: bool = True


#: Triton's ``model_type`` of the backend fil → the name of its file.
TREE_FILES = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
    "xgboost": "xgboost.model",
}

#: By the short names that the rest of the code uses.
BACKENDS = {
    "onnx": Backend(("onnxruntime", "onnx"), ("onnxruntime_onnx",), ("model.onnx",)),
    # An exported program before TorchScript.
    "torch": Backend(("pytorch", "torch", "libtorch"), ("pytorch_libtorch",), ("model.pt2", "model.pt")),
    "python": Backend(("python",), ("", "python"), ("model.py",)),
    "openvino": Backend(("openvino",), ("",), ("model.xml",)),
    # As in Triton, its files do not tell it: models of other backends have a model.txt beside them.
    "fil": Backend(("fil",), ("",), tuple(TREE_FILES.values()), told_by_file=False),
    "identity": Backend(("identity",), ("",), ()),
    # Hugging Face's layout. Files of this name are beside many models, so they tell nothing.
    "generation": Backend(("generation",), ("",), ("config.json",), told_by_file=False),
    # Another server computes it.
    "remote": Backend(("remote",), ("",), ()),
    # Runs one of several models, of which some compute a part on another machine.
    "divided": Backend(("divided",), ("",), ("divisions.json",), told_by_file=False),
    "ensemble": Backend(("ensemble",), ("ensemble",), ()),
}
#: Those whose models have no instances of their own.
WITHOUT_INSTANCES = frozenset(("ensemble", "remote", "divided"))
_BY_NAME = {name: short for short, backend in BACKENDS.items() for name in backend.names}
_BY_PLATFORM = {platform: short for short, backend in BACKENDS.items() for platform in backend.platforms if platform}

_TO_ONNX = "the model converted to ONNX (backend 'onnxruntime')"
_TENSORRT = f"{_TO_ONNX}: a TensorRT engine runs on the GPU that it was built for, and is not served"
_TENSORFLOW = f"{_TO_ONNX}, for example by tf2onnx: TensorFlow is not served"
_LANGUAGE_MODEL = (
    "backend 'generation' with the files of the model in Hugging Face's layout, or a model in Python (backend 'python')"
    " that calls the engine"
)
_EXAMPLE = "a model in Python (backend 'python'): this example backend of Triton's is not served"
_NO_LIBRARIES = "a model in Python (backend 'python'): backends in shared libraries are not loaded"
#: Backends and platforms of Triton's that are not served → what to use instead.
_NOT_SERVED = {
    "tensorrt": _TENSORRT,
    "tensorrt_plan": _TENSORRT,
    "tensorflow": _TENSORFLOW,
    "tensorflow_graphdef": _TENSORFLOW,
    "tensorflow_savedmodel": _TENSORFLOW,
    "caffe2_netdef": f"{_TO_ONNX}: Caffe2 is not served",
    "dali": "the preprocessing as a model in Python (backend 'python'): DALI is not served",
    "vllm": _LANGUAGE_MODEL,
    "tensorrtllm": _LANGUAGE_MODEL,
    "fastertransformer": _LANGUAGE_MODEL,
    "paddle": f"{_TO_ONNX}, or backend 'openvino' with default_model_filename 'model.pdmodel': Paddle is not served",
    "armnn_tflite": f"{_TO_ONNX}, or backend 'openvino' with the .tflite file: Arm NN is not served",
    "stateful": "backend 'onnxruntime' with sequence_batching.state: the stateful backend is not served",
    "hugectr": f"{_TO_ONNX}: HugeCTR is not served",
    "hps": f"{_TO_ONNX}: the hierarchical parameter server is not served",
    "repeat": _EXAMPLE,
    "square": _EXAMPLE,
    "minimal": _EXAMPLE,
    "recommended": _EXAMPLE,
    "sequence": _EXAMPLE,
    "dyna_sequence": _EXAMPLE,
    "distributed_addsub": _EXAMPLE,
    "custom": _NO_LIBRARIES,
}


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


def default_model_files(backend: str, config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    """Names that the model's file may have if the configuration states none, preferred first."""
    if backend == "fil" and "model_type" in config.parameters:
        # The backend rejects an unknown type.
        file = TREE_FILES.get(config.parameters["model_type"].string_value.strip().lower())
        if file is not None:
            return (file,)
    if backend == "torch" and has_ranks(config):
        return ("model.py",)
    return BACKENDS[backend].files


def _known(value: str, known: dict[str, str], key: str, where: str) -> str:
    if not value:
        return ""
    if value in _NOT_SERVED:
        raise ConfigError(where, key, _NOT_SERVED[value], f"'{value}'")
    if value not in known:
        raise ConfigError(where, key, suggestion(value, sorted(known), key), f"'{value}'")
    return known[value]
