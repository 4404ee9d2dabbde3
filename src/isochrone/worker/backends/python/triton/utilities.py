"""Makes ``triton_python_backend_utils`` for one model instance: Triton's names, bound to the server that runs it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.worker.backends.python.triton import metrics, requests, responses
from isochrone.worker.backends.python.triton.auto_complete import ModelConfig
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.server import RunningErrands, Server
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor as Array

MODULE_NAME = "triton_python_backend_utils"
#: The part of Triton's module that is written in C++; some models import it by this name.
MODULE_NAMES = (MODULE_NAME, "c_python_backend_utils")

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
_NUMPY_BY_NUMBER: dict[int, Any] = dict(enumerate((np.bool_, *list(TRITON_STRING_TO_NUMPY.values())[1:]), start=1))


class MemoryType:
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = range(2)


def make_module(server: Server, model_directory: Path, errands: RunningErrands | None = None) -> ModuleType:
    """The module for a model in ``model_directory``, the directory of its version; ``errands``: of its runs."""
    module = ModuleType(MODULE_NAME, "Triton's python backend utilities, as Isochrone provides them.")
    bound = {"__slots__": (), "_server": server, "_errands": errands or RunningErrands()}
    request_type = type("InferenceRequest", (requests.InferenceRequest,), bound)
    vars(module).update(SHARED_NAMES)
    vars(module).update(
        InferenceRequest=request_type,
        Logger=_logger(server),
        MetricFamily=type("MetricFamily", (metrics.MetricFamily,), {"_server": server}),
        get_model_dir=lambda: str(model_directory),
        **_server_functions(server),
    )
    return module


def _server_functions(server: Server) -> dict[str, Callable[..., Any]]:
    def is_model_ready(model_name: str, model_version: str = "") -> Any:
        return _asked("Failed to check model readiness", server.is_model_ready, model_name, model_version)

    def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        _asked("Failed to load model", server.load_model, model_name, config, files)

    def unload_model(model_name: str, unload_dependents: bool = False) -> None:
        _asked("Failed to unload model", server.unload_model, model_name, unload_dependents)

    return {"is_model_ready": is_model_ready, "load_model": load_model, "unload_model": unload_model}


def _asked(words: str, ask: Callable[..., Any], *arguments: Any) -> Any:
    # No context manager: contextlib's frames would be in the texts of errors.
    try:
        return ask(*arguments)
    except TritonModelException as error:
        raise TritonModelException(f"{words}: {error}") from None


def _logger(server: Server) -> type:
    """``Logger``: its functions are called without an object."""

    class LogLevel:
        INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "debug"

    def log(message: str, level: str = LogLevel.INFO) -> None:
        server.log(level, message)

    members: dict[str, Any] = {
        "LogLevel": LogLevel,
        **{name: value for name, value in vars(LogLevel).items() if name.isupper()},
        "log": staticmethod(log),
        "log_info": staticmethod(lambda message: server.log("info", message)),
        "log_warn": staticmethod(lambda message: server.log("warning", message)),
        "log_error": staticmethod(lambda message: server.log("error", message)),
        "log_verbose": staticmethod(lambda message: server.log("debug", message)),
    }
    return type("Logger", (), members)


# Functions of Triton's module that need no server.


def get_input_tensor_by_name(inference_request: requests.InferenceRequest, name: str) -> Tensor | None:
    # A loop and no generator: it is called for every input of every request.
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: responses.InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((each for each in model_config.get("input", ()) if each["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((each for each in model_config.get("output", ()) if each["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    policy = model_config.get("model_transaction_policy")
    return False if policy is None else policy["decoupled"]


def triton_to_numpy_type(data_type: int) -> Any:
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    if data_type == np.bytes_:
        return 13
    return next((number for number, known in _NUMPY_BY_NUMBER.items() if data_type == known), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """Each element as its length in four bytes and its bytes; None if the array holds numbers."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    parts = []
    for element in input_tensor.reshape(-1).tolist():
        encoded = element if isinstance(element, bytes) else str(element).encode()
        parts += [struct.pack("<I", len(encoded)), encoded]
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    elements, offset = [], 0
    while offset < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, offset)
        elements.append(bytes(encoded_tensor[offset + 4 : offset + 4 + length]))
        offset += 4 + length
    return np.array(elements, dtype=np.object_)


#: What does not depend on a model.
SHARED_NAMES: dict[str, Any] = {
    "TritonError": TritonError,
    "TritonModelException": TritonModelException,
    "Tensor": Tensor,
    "InferenceResponse": responses.InferenceResponse,
    "InferenceResponseSender": responses.InferenceResponseSender,
    "ResponseIterator": responses.ResponseIterator,
    "InferenceTrace": requests.InferenceTrace,
    "PreferredMemory": requests.PreferredMemory,
    "MemoryType": MemoryType,
    "ModelConfig": ModelConfig,
    "Metric": metrics.Metric,
    "TRITONSERVER_MEMORY_GPU": MemoryType.TRITONSERVER_MEMORY_GPU,
    "TRITONSERVER_MEMORY_CPU": MemoryType.TRITONSERVER_MEMORY_CPU,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": requests.SEQUENCE_START,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": requests.SEQUENCE_END,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": responses.COMPLETE_FINAL,
    "TRITONSERVER_REQUEST_RELEASE_ALL": requests.RELEASE_ALL,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": requests.RELEASE_RESCHEDULE,
    "TRITON_STRING_TO_NUMPY": TRITON_STRING_TO_NUMPY,
    **{
        function.__name__: function
        for function in (
            get_input_tensor_by_name,
            get_output_tensor_by_name,
            get_input_config_by_name,
            get_output_config_by_name,
            using_decoupled_model_transaction_policy,
            triton_to_numpy_type,
            numpy_to_triton_type,
            triton_string_to_numpy,
            serialize_byte_tensor,
            deserialize_bytes_tensor,
        )
    },
}
