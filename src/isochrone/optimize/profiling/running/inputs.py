"""Inputs of profiled runs: random numbers, and zeros for whole numbers, which may be indexes of small tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from isochrone.errors import FlagError
from isochrone.models.shapes import fits, shown
from isochrone.protocol.tensors.datatypes import numpy_of
from isochrone.worker.backends.tensors.received_inputs import as_received

if TYPE_CHECKING:
    from isochrone.models.signature import Signature, TensorSpec
    from isochrone.protocol.messages import Tensor, Tensors

FLAG = "--shape"


def parse_shapes(words: Sequence[str]) -> dict[str, list[int]]:
    """``NAME:1,128`` words by name."""
    shapes: dict[str, list[int]] = {}
    for word in words:
        name, colon, sizes = word.rpartition(":")
        try:
            shape = [int(size) for size in sizes.split(",")]
        except ValueError:
            shape = []
        if not colon or not name or not shape or min(shape) < 1:
            raise FlagError(FLAG, "NAME:SIZE,SIZE such as tokens:128", repr(word))
        if name in shapes:
            raise FlagError(FLAG, f"a shape of '{name}' once", "it twice")
        shapes[name] = shape
    return shapes


def check_shapes(signature: Signature, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The shape of every input, without the batch. Raises for one that is unknown, unfit or missing."""
    for name in shapes:
        if name not in signature.input_by_name:
            known = ", ".join(f"'{each.name}'" for each in signature.inputs)
            raise FlagError(FLAG, f"an input of model '{signature.model}' ({known})", f"'{name}'")
    return {spec.name: _shape(spec, shapes.get(spec.name)) for spec in signature.inputs}


def _shape(spec: TensorSpec, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        if -1 in spec.dims:
            example = ",".join(str(size if size > 0 else 128) for size in spec.dims)
            expected = f"the sizes of input '{spec.name}', whose dims {shown(spec.dims)} are variable, as in"
            raise FlagError(FLAG, f"{expected} {FLAG} {spec.name}:{example}", "none")
        return spec.dims
    if not fits(given, spec.dims):
        without = ", without the batch"
        raise FlagError(FLAG, f"sizes of '{spec.name}' that fit {shown(spec.dims)}{without}", shown(given))
    return tuple(given)


def make_inputs(signature: Signature, shapes: Mapping[str, tuple[int, ...]], rows: int) -> Tensors:
    """One batch, as a transport would deliver it."""
    random = np.random.default_rng(0)
    batched = signature.max_batch_size > 0
    return as_received(
        {
            spec.name: _array(spec.datatype, (rows, *shapes[spec.name]) if batched else shapes[spec.name], random)
            for spec in signature.inputs
        }
    )


def _array(datatype: str, shape: tuple[int, ...], random: np.random.Generator) -> Tensor:
    if datatype == "BYTES":
        return np.full(shape, b"", dtype=np.object_)
    dtype = numpy_of(datatype)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    return random.standard_normal(shape).astype(dtype)
