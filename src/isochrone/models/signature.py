"""The inputs and outputs of a model, and whether a request fits them.

``Signature.check`` gets the tensor names, datatypes and shapes of every request before it is queued: a request that
passes cannot fail the other requests of its batch. It never reads tensor bytes. Everything that can be computed once
per model is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc import model_config_pb2

from isochrone.errors import InvalidArgument
from isochrone.models.shapes import fits, shown

# TYPE_STRING of ModelConfig is BYTES in the protocol; every other name differs only by the prefix.
OIP_NAME_BY_DATA_TYPE: dict[int, str] = {
    number: "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    for name, number in model_config_pb2.DataType.items()
    if name != "TYPE_INVALID"
}
DATA_TYPE_BY_OIP_NAME: dict[str, int] = {name: number for number, name in OIP_NAME_BY_DATA_TYPE.items()}

_BATCH_DIMENSION_NOTE = (
    ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended"
    " to each input shape. If you want to specify the full shape including the batch dim in your input dims"
    " config, try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output, as requests see it."""

    name: str
    datatype: str
    """The OIP name: ``FP32``, ``BYTES``, ..."""
    dims: tuple[int, ...]
    """Without the batch dimension; -1 is any size."""
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    """The shape that the model itself uses, if it differs from ``dims``; also without the batch dimension."""
    labels: tuple[str, ...] | None = None
    """Class names of an output, by index, for the classification extension."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of one model. ``max_batch_size`` 0 means that shapes carry no batch dimension."""

    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    input_by_name: Mapping[str, TensorSpec] = field(init=False, repr=False, compare=False)
    output_by_name: Mapping[str, TensorSpec] = field(init=False, repr=False, compare=False)
    _free_inputs: frozenset[str] = field(init=False, repr=False, compare=False)
    _required_count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "input_by_name", {spec.name: spec for spec in self.inputs})
        fill(self, "output_by_name", {spec.name: spec for spec in self.outputs})
        fill(self, "_free_inputs", frozenset(spec.name for spec in self.inputs if -1 in spec.dims))
        fill(self, "_required_count", sum(not spec.optional for spec in self.inputs))

    def check(self, inputs: Sequence[tuple[str, str, tuple[int, ...]]], outputs: Sequence[str] | None = None) -> int:
        """Returns the batch size of a request (1 for a model without batching), or raises ``InvalidArgument``.

        ``inputs`` holds name, datatype and full shape of each tensor; ``outputs`` the requested names, or None for all.
        """
        for name in outputs or ():
            if name not in self.output_by_name:
                raise InvalidArgument(
                    f"unexpected inference output '{name}' for model '{self.model}'."
                    f" Expected one of {_quoted(self.output_by_name)}"
                )
        batched = self.max_batch_size > 0
        batch, required = -1, 0
        for name, datatype, shape in inputs:
            spec = self.input_by_name.get(name)
            if spec is None:
                raise InvalidArgument(
                    f"unexpected inference input '{name}' for model '{self.model}'."
                    f" Expected one of {_quoted(self.input_by_name)}"
                )
            if datatype != spec.datatype:
                raise InvalidArgument(
                    f"inference input '{name}' data-type is '{datatype}', but model '{self.model}' expects"
                    f" '{spec.datatype}'"
                )
            row = shape[1:] if batched else shape
            # One tuple comparison settles the common case of fully declared dims.
            matches = fits(row, spec.dims) if name in self._free_inputs else row == spec.dims
            if not matches or (batched and (not shape or shape[0] < 0)):
                raise self._unexpected_shape(spec, shape)
            if batched and shape[0] != batch:
                if batch != -1 or shape[0] == 0:
                    raise self._unexpected_batch(name, shape[0], batch)
                batch = shape[0]
            required += not spec.optional
        if len(inputs) > 1 and len({name for name, _, _ in inputs}) < len(inputs):
            raise self._repeated_input(inputs)
        if required < self._required_count:
            raise self._missing_inputs(inputs)
        if batch > self.max_batch_size:
            raise InvalidArgument(
                f"inference request batch-size must be <= {self.max_batch_size} for '{self.model}', got {batch}"
            )
        return batch if batched and inputs else 1

    def _unexpected_shape(self, spec: TensorSpec, shape: tuple[int, ...]) -> InvalidArgument:
        batched = self.max_batch_size > 0
        expected = (-1, *spec.dims) if batched else spec.dims
        note = _BATCH_DIMENSION_NOTE if batched and len(shape) == len(spec.dims) else ""
        return InvalidArgument(
            f"unexpected shape for input '{spec.name}' for model '{self.model}'."
            f" Expected {shown(expected)}, got {shown(shape)}{note}"
        )

    def _unexpected_batch(self, name: str, given: int, batch: int) -> InvalidArgument:
        if given == 0:
            return InvalidArgument(
                f"inference request batch-size must be >= 1 for '{self.model}', got 0 rows in input '{name}'"
            )
        return InvalidArgument(
            f"input '{name}' batch size does not match other inputs for '{self.model}': expected {batch}, got {given}"
        )

    def _repeated_input(self, inputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> InvalidArgument:
        names = [name for name, _, _ in inputs]
        repeated = next(name for name in names if names.count(name) > 1)
        return InvalidArgument(
            f"input '{repeated}' already exists in request for model '{self.model}': expected it once, got it"
            f" {names.count(repeated)} times"
        )

    def _missing_inputs(self, inputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> InvalidArgument:
        given = [name for name, _, _ in inputs]
        missing = [spec.name for spec in self.inputs if not spec.optional and spec.name not in given]
        if self._required_count == len(self.inputs):
            expected = f"expected {len(self.inputs)} inputs"
        else:
            expected = f"expected number of inputs between {self._required_count} and {len(self.inputs)}"
        return InvalidArgument(
            f"{expected} but got {len(given)} inputs for model '{self.model}'. Got input(s) {_quoted(given)},"
            f" but missing required input(s) {_quoted(missing)}."
        )


def _quoted(names: Sequence[str] | Mapping[str, TensorSpec]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def signature_of(
    config: model_config_pb2.ModelConfig, labels: Mapping[str, tuple[str, ...]] | None = None
) -> Signature:
    """The signature of a validated configuration; ``labels`` are by output name.

    It excludes control inputs and implicit state of sequence models, which requests never carry.
    """
    labels = labels or {}
    return Signature(
        model=config.name,
        inputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=OIP_NAME_BY_DATA_TYPE[tensor.data_type],
                dims=tuple(tensor.dims),
                optional=tensor.optional,
                reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
            )
            for tensor in config.input
        ),
        outputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=OIP_NAME_BY_DATA_TYPE[tensor.data_type],
                dims=tuple(tensor.dims),
                reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
                labels=labels.get(tensor.name),
            )
            for tensor in config.output
        ),
        max_batch_size=config.max_batch_size,
    )
