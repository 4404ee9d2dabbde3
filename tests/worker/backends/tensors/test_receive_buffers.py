"""Which inputs a model may write to in place: those in a receive buffer, and never what a cache keeps."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from isochrone.protocol.tensors.binary import from_binary
from isochrone.worker.backends.tensors.receive_buffers import writable
from isochrone.worker.response_cache import frozen_copy

LARGE = 50_000


@pytest.mark.parametrize("shape", [(4,), (LARGE,), (LARGE // 4, 4)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_a_cache_keeps_is_copied(shape: tuple[int, ...], dtype: Any) -> None:
    kept = frozen_copy(np.ones(shape, dtype))
    for view in (kept, kept.reshape(-1)[1:]):
        array = writable(view)
        assert (array.shape, array.dtype) == (view.shape, view.dtype)
        array += 1
    assert kept.astype(np.float32).max() == 1


@pytest.mark.parametrize("datatype", ["FP32", "BF16"])
def test_a_large_input_of_a_request_is_not_copied(datatype: str) -> None:
    received = memoryview(bytes(LARGE * (4 if datatype == "FP32" else 2)))
    array = from_binary("x", datatype, (1, LARGE), received)
    assert not array.flags.writeable
    given = writable(array)
    assert given.flags.writeable
    assert np.shares_memory(given.view(np.uint8), array.view(np.uint8))


def test_a_writable_array_is_itself() -> None:
    array = np.ones(LARGE)
    assert writable(array) is array


def test_memory_of_somebody_else_is_copied() -> None:
    constant = np.frombuffer(bytes(4 * LARGE), np.float32)
    given = writable(constant)
    given += 1
    assert not constant.any()
