"""Arrays of every datatype, and the rubbish that strangers send in their place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isochrone.errors import IsochroneError
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME

FIXED_SIZE = [name for name in NUMPY_BY_NAME if name != "BYTES"]
INTEGERS = [name for name in FIXED_SIZE if NUMPY_BY_NAME[name].kind in "iu"]

#: The same examples in every run, and no failure because the machine was busy.
round_trip = settings(max_examples=50, deadline=None, derandomize=True)
fuzz = settings(max_examples=150, deadline=None, derandomize=True)

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def _object_array(elements: list, shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


short_bytes = st.binary(max_size=12)


@st.composite
def byte_arrays(draw, elements=short_bytes):
    shape = draw(shapes)
    size = int(np.prod(shape, dtype=int))
    return _object_array(draw(st.lists(elements, min_size=size, max_size=size)), shape)


@st.composite
def arrays(draw, name: str, finite: bool = False):
    """An array of a datatype, every bit pattern allowed unless ``finite``."""
    if name == "BYTES":
        return draw(byte_arrays())
    if name == "BF16":
        bits = draw(hnp.arrays(np.uint16, shapes))
        return bits.view(ml_dtypes.bfloat16)
    dtype = NUMPY_BY_NAME[name]
    if dtype.kind == "f":
        width = dtype.itemsize * 8
        numbers = st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
        return draw(hnp.arrays(dtype, shapes, elements=numbers))
    return draw(hnp.arrays(dtype, shapes))


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal in type, shape and every bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == np.object_:
        return left.tolist() == right.tolist()
    return left.tobytes() == right.tobytes()


def outcome(call, *arguments):
    """What the call returns, or the error of ours that it raised; any other error passes through."""
    try:
        return call(*arguments)
    except IsochroneError as error:
        return error


#: Beyond what Python will print.
huge = st.integers(5000, 6000).map(lambda digits: 10**digits)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | huge
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
#: Dimensions as a JSON header or a protobuf may hold them, honest and not.
wild_shapes = st.lists(
    st.integers(-2, 4) | st.sampled_from([2**31, 2**40, 2**62, 2**63, -(2**63)]) | scalars, max_size=40
)
