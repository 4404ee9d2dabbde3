"""The inputs and outputs that a model declares which OpenVINO reads (model.xml, model.onnx and others).

``completion`` uses it if a configuration leaves tensors out. openvino is an extra and is imported when the first such
model is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError
from isochrone.models.file_stamp import read_if_changed
from isochrone.models.file_tensors import Declared, FileTensor
from isochrone.models.runtimes import optional_runtime
from isochrone.models.unnamed_tensors import position_name

#: OpenVINO's element types → datatypes of the protocol.
DATATYPE_BY_ELEMENT = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
}


def read_openvino_tensors(path: Path) -> Declared:
    """Inputs and outputs that ``path`` declares."""
    if not path.exists():
        raise ConfigError(str(path), "file", "a model that OpenVINO reads", "no such file")
    if not path.is_file():
        return _read(path)  # a SavedModel is a directory
    return read_if_changed(path, _read)


def _read(path: Path) -> Declared:
    openvino = optional_runtime("openvino", "openvino", str(path))
    try:
        model = openvino.Core().read_model(str(path))
        inputs = tuple(_tensor(port, path, "input", number) for number, port in enumerate(model.inputs))
        outputs = tuple(_tensor(port, path, "output", number) for number, port in enumerate(model.outputs))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(str(path), "file", "a model that OpenVINO reads", str(error).strip()) from None
    return inputs, outputs


def _tensor(port: Any, path: Path, kind: str, number: int) -> FileTensor:
    is_named = bool(port.get_names())
    # As in Triton: of several names, the one that OpenVINO gives. Triton does not serve unnamed tensors.
    name = port.get_any_name() if is_named else position_name(kind, number)
    element = port.get_element_type().get_type_name()
    datatype = DATATYPE_BY_ELEMENT.get(element)
    if element == "dynamic":
        expected = "a known datatype (openvino.convert_model learns it from example_input)"
        raise ConfigError(str(path), f"{kind} '{name}'", expected, "any")
    if datatype is None:
        expected = "a tensor of one of " + ", ".join(DATATYPE_BY_ELEMENT.values())
        raise ConfigError(str(path), f"{kind} '{name}'", expected, element)
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise ConfigError(
            str(path), f"{kind} '{name}'", "a known number of dimensions, or dims in config.pbtxt", "none"
        )
    sizes = tuple(-1 if size.is_dynamic else size.get_length() for size in shape)
    return FileTensor(name, datatype, sizes, is_named)
