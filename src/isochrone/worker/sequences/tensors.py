"""Control tensors and implicit state of a sequence model.

``batcher`` decides which requests run together and in which rows. This module builds the model's inputs from that
decision, and splits the model's state outputs into one state per sequence. The configuration has passed
``models.configuration.validation``. Nothing here changes an array that it receives: callers, other batches and a
running model may be reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.models.shapes import fits
from isochrone.models.signature import OIP_NAME_BY_DATA_TYPE
from isochrone.protocol.tensors.binary import from_binary
from isochrone.protocol.tensors.datatypes import numpy_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors

    #: The implicit state of one sequence: one tensor per configured state, shaped as one row of a batch.
    States = tuple[Tensor, ...]

_Control = model_config_pb2.ModelSequenceBatching.Control
START: int = _Control.CONTROL_SEQUENCE_START
END: int = _Control.CONTROL_SEQUENCE_END
READY: int = _Control.CONTROL_SEQUENCE_READY
CORRELATION_ID: int = _Control.CONTROL_SEQUENCE_CORRID

#: Fields of a control that hold its values for false and for true → the type of its tensor.
_FLAG_TYPES = {
    "int32_false_true": np.dtype("<i4"),
    "fp32_false_true": np.dtype("<f4"),
    "bool_false_true": np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class ControlTensor:
    """An input that carries START, END, READY or the correlation id of each row."""

    name: str
    kind: int
    dtype: np.dtype[Any]
    false: bool | int | float | bytes
    #: None for CORRELATION_ID, whose value comes from the request.
    true: bool | int | float | None


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One implicit state: the model reads from ``input_name`` the tensor that it last wrote to ``output_name``."""

    input_name: str
    output_name: str
    dtype: np.dtype[Any]
    #: Without the batch dimension; -1: any size.
    dims: tuple[int, ...]
    #: The state of a new sequence, shaped as one row of a batch.
    initial: Tensor


class SequenceTensors:
    """Builds the inputs and splits the states of one model's batches. Immutable, so any thread may use it."""

    __slots__ = ("_correlation_id", "_model", "batched", "controls", "initial", "states", "variable")

    def __init__(self, config: Any, directory: Path | None) -> None:
        """``directory`` is the model's; it holds the ``data_file`` of a state in ``initial_state/``."""
        self._model: str = config.name
        #: Whether arrays carry a leading batch dimension.
        self.batched: bool = config.max_batch_size > 0
        self.controls = _controls(config.sequence_batching)
        where = str((directory or Path(config.name)) / "config.pbtxt")
        self.states = _states(config.sequence_batching, where, directory, self.batched)
        self.initial: States = tuple(state.initial for state in self.states)
        #: Whether two sequences' states may differ in shape, so that they cannot share a batch.
        self.variable = any(-1 in state.dims for state in self.states)
        self._correlation_id = next((c for c in self.controls if c.kind == CORRELATION_ID), None)

    def check_sequence_id(self, sequence_id: int | str) -> None:
        """Rejects an id that the correlation input cannot hold: truncated, it could equal another id."""
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
        """The new state of each request, from the model's outputs."""
        columns: list[list[Tensor]] = []
        for state in self.states:
            tensor = None if outputs is None else outputs.get(state.output_name)
            expected = (rows, *state.dims) if self.batched else state.dims
            if tensor is None or tensor.dtype != state.dtype or not fits(tensor.shape, expected):
                given = "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                raise ModelFailed(
                    f"state output '{state.output_name}' of model '{self._model}': expected {state.dtype}"
                    f" {list(expected)}, given {given}"
                )
            # Copies: a view would keep the whole batch in memory for as long as its longest sequence lives.
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
    # Ids are unsigned in the protocol: a signed input gets the same bits, so distinct ids stay distinct.
    if dtype.kind == "i" and value >> (8 * dtype.itemsize - 1):
        value -= 1 << 8 * dtype.itemsize
    return value


def _controls(batching: Any) -> tuple[ControlTensor, ...]:
    return tuple(_control_tensor(entry.name, entry.control[0]) for entry in batching.control_input)


def _control_tensor(name: str, control: Any) -> ControlTensor:
    if control.kind == CORRELATION_ID:
        dtype = _dtype(control.data_type)
        return ControlTensor(name, control.kind, dtype, b"" if dtype.kind == "O" else 0, None)
    for field, dtype in _FLAG_TYPES.items():
        if values := getattr(control, field):
            return ControlTensor(name, control.kind, dtype, *values)
    raise AssertionError(f"control input '{name}' has no values: validation rejects it")


def _states(batching: Any, where: str, directory: Path | None, batched: bool) -> tuple[StateTensor, ...]:
    states: list[StateTensor] = []
    for number, entry in enumerate(batching.state):
        row = _initial_state(entry, where, f"sequence_batching.state[{number}].initial_state", directory)
        initial = row[np.newaxis] if batched else row
        initial.setflags(write=False)
        states.append(StateTensor(entry.input_name, entry.output_name, row.dtype, tuple(entry.dims), initial))
    return tuple(states)


def _initial_state(entry: Any, where: str, key: str, directory: Path | None) -> Tensor:
    """The state of a new sequence, without the batch dimension."""
    if not entry.initial_state:
        # Triton leaves this memory uninitialised; zeros are deterministic. As in Triton, a free size is 1.
        return _zeros(tuple(1 if size == -1 else size for size in entry.dims), _dtype(entry.data_type))
    (initial,) = entry.initial_state
    shape = tuple(initial.dims)
    if not initial.data_file:
        return _zeros(shape, _dtype(entry.data_type))
    key = f"{key}.data_file"
    if directory is None:
        raise ConfigError(where, key, "a model that lies in a directory", repr(initial.data_file))
    path = directory / "initial_state" / initial.data_file
    try:
        return from_binary(entry.input_name, OIP_NAME_BY_DATA_TYPE[entry.data_type], shape, path.read_bytes())
    except (OSError, InvalidArgument) as error:
        given = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            where, key, f"a file in initial_state/ with a tensor of shape {list(shape)}", given
        ) from error


def _dtype(data_type: int) -> np.dtype[Any]:
    return numpy_of(OIP_NAME_BY_DATA_TYPE[data_type])
