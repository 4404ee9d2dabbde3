"""Memory shared with a process that is not trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME, bytes_tensor
from isochrone.worker.backends.processes.places import BadPlace, Place
from isochrone.worker.backends.processes.shared_block import SharedBlock

Array = np.ndarray[Any, np.dtype[Any]]
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    datatype = draw(st.sampled_from(list(NUMPY_BY_NAME)))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return bytes_tensor(draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count)), shape)
    dtype = NUMPY_BY_NAME[datatype]
    size = count * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, dtype).reshape(shape)


@pytest.fixture
def block() -> Iterator[SharedBlock]:
    made = SharedBlock.create("test")
    yield made
    made.close()


@given(tensors=st.dictionaries(st.text(max_size=5), arrays(), max_size=4), copy=st.booleans())
def test_what_one_side_writes_the_other_reads(tensors: dict[str, Array], copy: bool) -> None:
    writer = SharedBlock.create("test")
    reader = SharedBlock(os.dup(writer.descriptor))
    try:
        places, size = writer.write(tensors)
        read = reader.read(places, size, copy=copy)
        assert list(read) == list(tensors)
        for name, array in tensors.items():
            assert read[name].dtype == array.dtype
            assert read[name].shape == array.shape
            if array.dtype == np.object_:
                assert read[name].tolist() == array.tolist()
            else:
                assert read[name].tobytes() == array.tobytes()
        lent = not copy and any(array.dtype != np.object_ for array in read.values())
        if size:
            assert reader.in_use() == lent
        del read
        assert not reader.in_use()
    finally:
        writer.close()
        reader.close()


@pytest.mark.parametrize(
    "place",
    [
        Place("x", "FP32", (2,), 0, 4),
        Place("x", "FP32", (1,), 62, 4),
        Place("x", "FP32", (1,), -4, 4),
        Place("x", "FP32", (-1,), 0, -4),
        Place("x", "FP33", (1,), 0, 4),
        Place("x", "BYTES", (1,), 0, 64),
        Place("x", "BYTES", (1 << 40,), 0, 64),
        Place("x", "BYTES", (-1,), 0, 0),
        Place("x", "FP32", (0, 1 << 62, 1 << 62), 0, 0),
    ],
)
def test_places_outside_the_block_are_refused(block: SharedBlock, place: Place) -> None:
    _, size = block.write({"x": np.full(64, 255, np.uint8)})
    with pytest.raises(BadPlace):
        block.read([place], size, copy=True)


def test_a_size_that_is_not_there_is_refused(block: SharedBlock) -> None:
    with pytest.raises(BadPlace, match="4096 bytes in a block of 0"):
        block.read([], 4096, copy=True)


def test_the_other_side_cannot_cut_the_block(block: SharedBlock) -> None:
    block.write({"x": np.zeros(100_000, np.uint8)})
    with pytest.raises(PermissionError):
        os.ftruncate(block.descriptor, 0)
