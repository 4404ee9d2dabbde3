"""The tensors a batch of sequence requests has beside its callers' inputs: control signals, implicit state.

``sequences`` decides which requests run together and in which rows; this module turns that decision into
arrays, and the model's state outputs back into one state per sequence. Configuration is read and refused
here, once, at load. It must never change an array it was given: callers, other batches and a running model may
be reading it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors

    #: The implicit state of one sequence: one tensor per configured state, shaped as one row of a batch.
    States = tuple[Tensor, ...]

_Control = model_config_pb2.ModelSequenceBatching.Control
START: int = _Control.CONTROL_SEQUENCE_START
END: int = _Control.CONTROL_SEQUENCE_END
READY: int = _Control.CONTROL_SEQUENCE_READY
CORRELATION_ID: int = _Control.CONTROL_SEQUENCE_CORRID

#: By ``model_config_pb2.DataType``. BYTES tensors are arrays of ``bytes`` objects.
_NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    model_config_pb2.TYPE_BOOL: np.dtype(np.bool_),
    model_config_pb2.TYPE_UINT8: np.dtype("<u1"),
    model_config_pb2.TYPE_UINT16: np.dtype("<u2"),
    model_config_pb2.TYPE_UINT32: np.dtype("<u4"),
    model_config_pb2.TYPE_UINT64: np.dtype("<u8"),
    model_config_pb2.TYPE_INT8: np.dtype("<i1"),
    model_config_pb2.TYPE_INT16: np.dtype("<i2"),
    model_config_pb2.TYPE_INT32: np.dtype("<i4"),
    model_config_pb2.TYPE_INT64: np.dtype("<i8"),
    model_config_pb2.TYPE_FP16: np.dtype("<f2"),
    model_config_pb2.TYPE_FP32: np.dtype("<f4"),
    model_config_pb2.TYPE_FP64: np.dtype("<f8"),
    model_config_pb2.TYPE_BF16: np.dtype(ml_dtypes.bfloat16),
    model_config_pb2.TYPE_STRING: np.dtype(object),
}
_CORRELATION_ID_TYPES = {
    model_config_pb2.TYPE_UINT64,
    model_config_pb2.TYPE_INT64,
    model_config_pb2.TYPE_UINT32,
    model_config_pb2.TYPE_INT32,
    model_config_pb2.TYPE_STRING,
}


@dataclass(frozen=True, slots=True)
class ControlTensor:
    """One input through which the model is told where in its sequence each row stands."""

    name: str
    kind: int
    dtype: np.dtype[Any]
    false: bool | int | float | bytes
    #: None for CORRELATION_ID, whose value comes from the request.
    true: bool | int | float | None


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One implicit state: what the model wrote to ``output_name``, it next reads from ``input_name``."""

    input_name: str
    output_name: str
    dtype: np.dtype[Any]
    #: Without the batch dimension; -1: any size.
    dims: tuple[int, ...]
    #: What a sequence's first request reads, shaped as one row of a batch.
    initial: Tensor


class SequenceTensors:
    """Builds and takes apart the batches of one model. Immutable, so any thread may use it."""

    __slots__ = ("_correlation_id", "_model", "batched", "controls", "initial", "states", "variable")

    def __init__(self, config: Any, directory: Path | None) -> None:
        """``directory`` is the model's own: a state's ``data_file`` lies in its ``initial_state`` folder."""
        self._model: str = config.name
        #: Whether arrays carry a leading batch dimension.
        self.batched: bool = config.max_batch_size > 0
        where = f"{config.name}/config.pbtxt"
        self.controls = _controls(config.sequence_batching, where)
        self.states = _states(config.sequence_batching, where, directory, self.batched)
        self.initial: States = tuple(state.initial for state in self.states)
        #: Whether two sequences' states may differ in shape, so that they cannot share a batch.
        self.variable = any(-1 in state.dims for state in self.states)
        self._correlation_id = next((c for c in self.controls if c.kind == CORRELATION_ID), None)

    def check_sequence_id(self, sequence_id: int | str) -> None:
        """Refuses an id that the model's correlation input cannot carry: a truncated one may be another's."""
        control = self._correlation_id
        if control is None or control.dtype.kind == "O":
            return
        bits = 8 * control.dtype.itemsize
        if isinstance(sequence_id, str) or not 0 <= sequence_id < 1 << bits:
            raise InvalidArgument(
                f"correlation ID of inference request to model '{self._model}' must fit control input"
                f" '{control.name}': expected an integer of {bits} bits, got {sequence_id!r}"
            )

    def gather(
        self,
        requests: Sequence[InferRequest],
        states: Sequence[States],
        positions: Sequence[int],
        rows: int,
    ) -> Tensors:
        """The model's inputs: request ``i`` in row ``positions[i]``; other rows are zero and not READY."""
        tensors: Tensors = {
            name: _stack([request.inputs[name] for request in requests], positions, rows) for name in requests[0].inputs
        }
        for number, state in enumerate(self.states):
            tensors[state.input_name] = _stack([own[number] for own in states], positions, rows)
        for control in self.controls:
            tensors[control.name] = self._control(control, requests, positions, rows)
        return tensors

    def _control(
        self, control: ControlTensor, requests: Sequence[InferRequest], positions: Sequence[int], rows: int
    ) -> Tensor:
        values = np.full(rows, control.false, dtype=control.dtype)
        for request, position in zip(requests, positions, strict=True):
            plan = request.plan
            if control.kind == CORRELATION_ID:
                values[position] = _correlation_value(plan.sequence_id, control.dtype)
            elif (
                control.kind == READY
                or (control.kind == START and plan.sequence_start)
                or (control.kind == END and plan.sequence_end)
            ):
                values[position] = control.true
        return values.reshape(rows, 1) if self.batched else values

    def scatter(self, outputs: Tensors | None, positions: Sequence[int], rows: int) -> list[States]:
        """Each request's new state out of the model's outputs, which may hold others too."""
        columns: list[list[Tensor]] = []
        for state in self.states:
            tensor = None if outputs is None else outputs.get(state.output_name)
            expected = (rows, *state.dims) if self.batched else state.dims
            if tensor is None or tensor.dtype != state.dtype or not _fits(tensor.shape, expected):
                given = "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise ModelFailed(
                    f"state output '{state.output_name}' of model '{self._model}': expected {state.dtype}"
                    f" {list(expected)}, given {given}"
                )
            # A view would keep the whole batch's array alive for as long as its longest sequence.
            columns.append(
                [tensor]
                if rows == 1 or not self.batched
                else [tensor[position : position + 1].copy() for position in positions]
            )
        return list(zip(*columns, strict=True)) if columns else [()] * len(positions)


def _stack(parts: Sequence[Tensor], positions: Sequence[int], rows: int) -> Tensor:
    if rows == 1:
        return parts[0]
    if len(parts) == rows:
        return np.concatenate(parts)
    array = _zeros((rows, *parts[0].shape[1:]), parts[0].dtype)
    for position, part in zip(positions, parts, strict=True):
        array[position] = part[0]
    return array


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    # numpy's zero of an object array is the integer 0; BYTES has the empty string.
    return np.full(shape, b"", dtype=dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def _correlation_value(sequence_id: int | str, dtype: np.dtype[Any]) -> int | bytes:
    if dtype.kind == "O":
        return str(sequence_id).encode()
    value = int(sequence_id)
    # Ids are unsigned on the wire: a signed input gets the same bits, which keeps distinct ids distinct.
    if dtype.kind == "i" and value >> (8 * dtype.itemsize - 1):
        value -= 1 << 8 * dtype.itemsize
    return value


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(expected in (-1, size) for size, expected in zip(shape, dims, strict=True))


def _controls(batching: Any, where: str) -> tuple[ControlTensor, ...]:
    controls: dict[int, ControlTensor] = {}
    for number, entry in enumerate(batching.control_input):
        key = f"sequence_batching.control_input[{number}]"
        if not entry.name:
            raise ConfigError(where, f"{key}.name", "the name of a model input", "nothing")
        if len(entry.control) != 1:
            raise ConfigError(where, f"{key}.control", "one control per input", str(len(entry.control)))
        control = _control_tensor(entry.name, entry.control[0], where, f"{key}.control[0]")
        if control.kind in controls:
            kind = _Control.Kind.Name(control.kind)
            other = controls[control.kind].name
            raise ConfigError(where, f"{key}.control[0].kind", f"{kind} on one input only", f"also on '{other}'")
        controls[control.kind] = control
    return tuple(controls.values())


def _control_tensor(name: str, control: Any, where: str, key: str) -> ControlTensor:
    if control.kind == CORRELATION_ID:
        if control.data_type not in _CORRELATION_ID_TYPES:
            raise ConfigError(
                where,
                f"{key}.data_type",
                "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING",
                model_config_pb2.DataType.Name(control.data_type),
            )
        dtype = _NUMPY_TYPES[control.data_type]
        return ControlTensor(name, control.kind, dtype, b"" if dtype.kind == "O" else 0, None)
    given = {
        field: list(getattr(control, field))
        for field in ("int32_false_true", "fp32_false_true", "bool_false_true")
        if getattr(control, field)
    }
    if len(given) != 1 or len(next(iter(given.values()))) != 2:
        raise ConfigError(
            where,
            key,
            "one of int32_false_true, fp32_false_true, bool_false_true, with two values",
            ", ".join(f"{field}: {values}" for field, values in given.items()) or "none",
        )
    field, (false, true) = next(iter(given.items()))
    dtypes = {"int32_false_true": "<i4", "fp32_false_true": "<f4", "bool_false_true": "?"}
    return ControlTensor(name, control.kind, np.dtype(dtypes[field]), false, true)


def _states(batching: Any, where: str, directory: Path | None, batched: bool) -> tuple[StateTensor, ...]:
    states: list[StateTensor] = []
    for number, entry in enumerate(batching.state):
        key = f"sequence_batching.state[{number}]"
        for field in ("input_name", "output_name"):
            name = getattr(entry, field)
            if not name or name in {getattr(state, field) for state in states}:
                raise ConfigError(where, f"{key}.{field}", "a tensor name used by no other state", repr(name))
        if entry.data_type not in _NUMPY_TYPES:
            raise ConfigError(
                where, f"{key}.data_type", "a tensor type", model_config_pb2.DataType.Name(entry.data_type)
            )
        dims = tuple(entry.dims)
        if any(size < -1 or size == 0 for size in dims):
            raise ConfigError(where, f"{key}.dims", "sizes of at least 1, or -1", str(list(dims)))
        row = _initial_state(entry, where, key, directory)
        initial = row[np.newaxis] if batched else row
        initial.setflags(write=False)
        states.append(StateTensor(entry.input_name, entry.output_name, row.dtype, dims, initial))
    return tuple(states)


def _initial_state(entry: Any, where: str, key: str, directory: Path | None) -> Tensor:
    """What a sequence starts from, without the batch dimension."""
    dtype = _NUMPY_TYPES[entry.data_type]
    if not entry.initial_state:
        # Triton leaves this memory uninitialised; zeros are the one deterministic choice. A free size is 1,
        # as there.
        return _zeros(tuple(1 if size == -1 else size for size in entry.dims), dtype)
    key = f"{key}.initial_state"
    if len(entry.initial_state) > 1:
        raise ConfigError(where, key, "at most one", str(len(entry.initial_state)))
    initial = entry.initial_state[0]
    if initial.data_type != entry.data_type:
        names = model_config_pb2.DataType.Name
        raise ConfigError(where, f"{key}.data_type", names(entry.data_type), names(initial.data_type))
    shape = tuple(initial.dims)
    if not _fits(shape, tuple(entry.dims)) or any(size < 1 for size in shape):
        raise ConfigError(where, f"{key}.dims", f"sizes that fit {list(entry.dims)}", str(list(shape)))
    source = initial.WhichOneof("state_data")
    if source == "data_file":
        return _read_state(initial.data_file, shape, dtype, where, f"{key}.data_file", directory)
    if source is None or not initial.zero_data:
        raise ConfigError(where, key, "zero_data: true, or data_file", "neither")
    return _zeros(shape, dtype)


def _read_state(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, key: str, directory: Path | None
) -> Tensor:
    # A plain name only: a configuration may come with a caller's load request, which must not read the disk.
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ConfigError(where, key, "the plain name of a file in initial_state/", repr(name))
    if directory is None:
        raise ConfigError(where, key, "a model that lies in a directory", repr(name))
    try:
        data = (directory / "initial_state" / name).read_bytes()
    except OSError as error:
        raise ConfigError(where, key, "a readable file in initial_state/", f"{name!r}: {error.strerror}") from error
    count = math.prod(shape)
    if dtype.kind == "O":
        return _read_strings(data, count, where, key).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise ConfigError(where, key, f"{count * dtype.itemsize} bytes", f"{name!r} with {len(data)}")
    return np.frombuffer(data, dtype).reshape(shape)


def _read_strings(data: bytes, count: int, where: str, key: str) -> Tensor:
    """BYTES elements as the protocol lays them out: a little-endian uint32 length before each."""
    elements: list[bytes] = []
    offset = 0
    while offset + 4 <= len(data):
        end = offset + 4 + int.from_bytes(data[offset : offset + 4], "little")
        if end > len(data):
            break
        elements.append(data[offset + 4 : end])
        offset = end
    if offset != len(data) or len(elements) != count:
        raise ConfigError(
            where,
            key,
            f"{count} length-prefixed elements",
            f"{len(elements)} and {len(data) - offset} bytes more",
        )
    array = np.empty(count, dtype=object)
    array[:] = elements
    return array
