"""Reads the output tensors of a server's answer (JSON, binary or protobuf) and compares two sets of them. Pure.

Answers come from any server of the protocol: one that cannot be read raises ``InvalidArgument`` with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from isochrone.control.state.rollout_records import CompareRule
from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.binary import from_binary, from_contents
from isochrone.protocol.tensors.datatypes import numpy_of
from isochrone.protocol.tensors.json_values import from_json
from isochrone.wire.exchange import Buffer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors


@dataclass(frozen=True, slots=True)
class Difference:
    """How an answer of the new version differs from the old version's."""

    #: The output; "": the answer as a whole.
    output: str
    reason: str
    #: The difference as a multiple of the tolerance; infinite if there is no number to compare.
    excess: float = math.inf

    def __str__(self) -> str:
        return f"output '{self.output}': {self.reason}" if self.output else self.reason


def compare_outputs(old: Mapping[str, Tensor], new: Mapping[str, Tensor], rule: CompareRule) -> Difference | None:
    """The largest difference, or None. Floats may differ by absolute + relative × |old|; other types are exact.

    NaN equals NaN, infinity equals the same infinity. Integers are exact because most are indices: token 5001 is not
    5000.
    """
    if old.keys() != new.keys():
        return Difference(
            "", f"outputs {', '.join(sorted(new)) or 'none'}, expected {', '.join(sorted(old)) or 'none'}"
        )
    found = [_difference(name, old[name], new[name], rule) for name in old]
    return max((each for each in found if each is not None), key=lambda each: each.excess, default=None)


def _difference(name: str, old: Tensor, new: Tensor, rule: CompareRule) -> Difference | None:
    if old.dtype != new.dtype:
        return Difference(name, f"datatype {new.dtype}, expected {old.dtype}")
    if old.shape != new.shape:
        return Difference(name, f"shape {list(new.shape)}, expected {list(old.shape)}")
    if not old.size:
        return None
    # numpy reports kind "V" for bfloat16, though it holds floats.
    if old.dtype.kind != "f" and old.dtype.name != "bfloat16":
        unequal = np.asarray(old != new)
        if not unequal.any():
            return None
        return Difference(name, _text(old, new, int(unequal.argmax()), int(unequal.sum())))
    wide, other = old.astype(np.float64), new.astype(np.float64)
    same = (wide == other) | (np.isnan(wide) & np.isnan(other))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        allowed = rule.absolute + rule.relative * np.abs(wide)
        excess = np.abs(wide - other) / allowed
    # A NaN or an infinity on one side only.
    excess[~(np.isfinite(wide) & np.isfinite(other))] = np.inf
    excess[same] = 0.0
    largest = int(excess.argmax())
    if excess.flat[largest] <= 1:
        return None
    return Difference(name, _text(old, new, largest, int((excess > 1).sum())), float(excess.flat[largest]))


def _text(old: Tensor, new: Tensor, index: int, count: int) -> str:
    place = [int(position) for position in np.unravel_index(index, old.shape)]
    values = f"{_value_text(new.flat[index])} at {place}, expected {_value_text(old.flat[index])}"
    return f"{values} ({count:,} of {old.size:,} elements differ)"


def _value_text(value: Any) -> str:
    text = repr(value) if isinstance(value, bytes | str) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"


# Reading.


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: Any = None
    parameters: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    outputs: list[_Output] = []


_answer = msgspec.json.Decoder(_Answer)


def read_http(body: Buffer, json_length: int) -> Tensors:
    """An inference answer; ``json_length``: its header ``inference-header-content-length``, or -1."""
    view = memoryview(body)
    position = json_length if json_length >= 0 else len(view)
    try:
        answer = _answer.decode(view[:position])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the answer is not an inference answer: {error}") from None
    outputs: Tensors = {}
    for output in answer.outputs:
        size = (output.parameters or {}).get("binary_data_size")
        if isinstance(size, int):
            piece = view[position : position + size]
            outputs[output.name] = from_binary(output.name, output.datatype, output.shape, piece)
            position += size
        else:
            outputs[output.name] = _from_json(output)
    return outputs


def _from_json(output: _Output) -> Tensor:
    dtype = numpy_of(output.datatype)
    if dtype.kind != "f" or not isinstance(output.data, list) or None not in output.data:
        return from_json(output.name, output.datatype, output.shape, output.data)
    # JSON answers write NaN as null, which ``from_json`` does not accept: requests may not contain it.
    numbers = [0 if value is None else value for value in output.data]
    array = from_json(output.name, output.datatype, output.shape, numbers).copy()
    array.reshape(-1)[[value is None for value in output.data]] = np.nan
    return array


def read_grpc(message: bytes) -> Tensors:
    """A ModelInferResponse."""
    try:
        answer = service_pb2.ModelInferResponse.FromString(message)
    except DecodeError as error:
        raise InvalidArgument(f"the answer is not a ModelInferResponse: {error}") from None
    outputs: Tensors = {}
    raw = iter(answer.raw_output_contents)
    for output in answer.outputs:
        shape = tuple(output.shape)
        if output.HasField("contents"):
            outputs[output.name] = from_contents(output.name, output.datatype, shape, output.contents)
        else:
            outputs[output.name] = from_binary(output.name, output.datatype, shape, next(raw, b""))
    return outputs
