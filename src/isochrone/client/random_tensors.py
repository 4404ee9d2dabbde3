"""Random inputs for a model, as its metadata describes them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isochrone.protocol.tensors.datatypes import bytes_tensor, numpy_of


class Described(Protocol):
    """An input of a model; -1 is a dimension of any size."""

    @property
    def datatype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def make_random(declared: Described, rows: int, random: np.random.Generator) -> NDArray[Any]:
    """Free dimensions are 1; the first dimension, where it is free, is ``rows``."""
    shape = tuple(size if size >= 0 else rows if position == 0 else 1 for position, size in enumerate(declared.shape))
    dtype = numpy_of(declared.datatype)
    if declared.datatype == "BYTES":
        count = int(np.prod(shape, dtype=np.int64))
        return bytes_tensor([b"%08x" % number for number in random.integers(0, 1 << 32, count).tolist()], shape)
    if declared.datatype == "BOOL":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        # Small enough for INT8, and for most vocabularies.
        return random.integers(0, 100, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
