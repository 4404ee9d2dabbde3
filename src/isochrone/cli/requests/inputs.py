"""The inputs of ``isochrone infer``: JSON or files from the command line, or random data, as the model declares them.

The server checks shapes. This module only converts data to the declared datatype and adds leading dimensions of 1 that
the command line left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.cli.requests.target import RequestFailed, TensorDescription
from isochrone.client.random_tensors import make_random
from isochrone.protocol.tensors.datatypes import check_range, numpy_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor

_EXPECTED = "expected NAME=JSON, NAME=@FILE.json or NAME=@FILE.npy"


def split_inputs(given: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` words by name."""
    inputs: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise RequestFailed(f"--input: {_EXPECTED}, given '{word}'")
        if name in inputs:
            raise RequestFailed(f"--input {name}: expected once, given twice")
        inputs[name] = value
    return inputs


def arrange(
    model: str,
    declared: Sequence[TensorDescription],
    given: Mapping[str, str],
    *,
    fill: bool,
    rows: int,
    seed: int,
) -> dict[str, tuple[str, Tensor]]:
    """Every declared input as (datatype, array). Inputs that are not given are random if ``fill``, else an error."""
    names = [each.name for each in declared]
    for name in given:
        if name not in names:
            raise RequestFailed(f"--input {name}: model '{model}' has no such input; it has {', '.join(names)}")
    missing = [name for name in names if name not in given]
    if missing and not fill:
        raise RequestFailed(f"model '{model}' also needs --input {missing[0]}=…; or fill in the rest with --random")
    random = np.random.default_rng(seed)
    inputs: dict[str, tuple[str, Tensor]] = {}
    for each in declared:
        array = read(each, given[each.name]) if each.name in given else make_random(each, rows, random)
        inputs[each.name] = (each.datatype, array)
    return inputs


def read(declared: TensorDescription, value: str) -> Tensor:
    """One input from the value of ``NAME=VALUE``."""
    where = f"--input {declared.name}"
    if value.startswith("@"):
        path = Path(value[1:])
        try:
            array = _from_npy(declared, path, where) if path.suffix == ".npy" else _from_file(declared, path, where)
        except OSError as error:
            raise RequestFailed(f"{where}: cannot read {path}: {error.strerror or error}") from None
    else:
        array = _from_json(declared, value, where)
    while array.ndim < len(declared.shape):
        array = array[np.newaxis]
    return np.ascontiguousarray(array)


def _from_npy(declared: TensorDescription, path: Path, where: str) -> Tensor:
    try:
        array: Tensor = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise RequestFailed(f"{where}: {path} is no .npy file of plain numbers or text: {error}") from None
    dtype = numpy_of(declared.datatype)
    if declared.datatype == "BYTES" and array.dtype.kind in "SU":
        return array.astype(np.object_)
    # int64 to int32 and float64 to float32 are intended; float to integer is not.
    if declared.datatype == "BYTES" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise RequestFailed(f"{where}: expected {declared.datatype}, given {array.dtype} in {path}")
    converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        raise RequestFailed(f"{where}: values in {path} are outside {declared.datatype}'s range")
    return converted


def _from_file(declared: TensorDescription, path: Path, where: str) -> Tensor:
    try:
        return _from_json(declared, path.read_text(), f"{where}: {path}")
    except UnicodeDecodeError:
        raise RequestFailed(f"{where}: {path} is neither JSON nor .npy") from None


def _from_json(declared: TensorDescription, text: str, where: str) -> Tensor:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise RequestFailed(f"{where}: {_EXPECTED}; as JSON it does not parse: {error}") from None
    if isinstance(data, dict) or data is None:
        raise RequestFailed(f"{where}: expected a number, a string or a list of them, given {text[:40]}")
    dtype = numpy_of(declared.datatype)
    try:
        if declared.datatype == "BYTES":
            return _texts(data)
        array = np.asarray(data)
        if array.dtype.kind not in "biuf" or (array.size and dtype.kind in "iub" and array.dtype.kind == "f"):
            raise ValueError(f"{text[:40]} is not of that type")
        check_range(array, dtype)
        # From the Python numbers, not from the array that numpy made of them.
        return np.asarray(data, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestFailed(f"{where}: expected {declared.datatype}, given another type: {error}") from None


def _texts(data: Any) -> Tensor:
    array = np.asarray(data)
    if array.dtype.kind != "U":
        raise ValueError("BYTES elements are given as strings")
    return array.astype(np.object_)
