"""The inputs and outputs that an ONNX file declares.

``completion`` uses it if a configuration leaves tensors out. onnxruntime reads the file, and infers shapes that it does
not state; it is imported inside the one function that needs it, so that a server of Python models never imports it. An
unchanged file is not read again: that takes as long as a load.
"""

from __future__ import annotations

from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models import onnx_telemetry as onnx_telemetry
from isochrone.models.file_stamp import read_if_changed
from isochrone.models.file_tensors import Declared, FileTensor

#: onnxruntime's tensor types → datatypes of the protocol.
DATATYPE_BY_ONNX_TYPE = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}


def read_onnx_tensors(path: Path) -> Declared:
    """Inputs and outputs that ``path`` declares."""
    if not path.is_file():
        raise ConfigError(str(path), "file", "an onnx model", "no such file")
    return read_if_changed(path, _read)


def _read(path: Path) -> Declared:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Only declarations are needed: no optimised copy of the weights, no thread pool.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions derive from Exception alone
        raise ConfigError(str(path), "file", "a readable onnx model", str(error)) from None
    inputs = tuple(_tensor(argument, path, "input") for argument in session.get_inputs())
    outputs = tuple(_tensor(argument, path, "output") for argument in session.get_outputs())
    return inputs, outputs


def _tensor(argument: object, path: Path, kind: str) -> FileTensor:
    name, onnx_type, shape = (getattr(argument, attribute) for attribute in ("name", "type", "shape"))
    datatype = DATATYPE_BY_ONNX_TYPE.get(onnx_type)
    if datatype is None:
        expected = "a tensor of one of " + ", ".join(DATATYPE_BY_ONNX_TYPE.values())
        raise ConfigError(str(path), f"{kind} '{name}'", expected, str(onnx_type))
    return FileTensor(name, datatype, tuple(size if isinstance(size, int) else -1 for size in shape))
