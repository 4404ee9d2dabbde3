"""Dimensions that a configuration and an onnx file state differently."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from isochrone.errors import InvalidArgument
from isochrone.models.repository.repository import Repository
from isochrone.worker.backends.tensors.file_shapes import check_dims
from isochrone.worker.catalog.catalog import Catalog
from sample_models import onnx_bytes, write_config, write_onnx


@pytest.mark.parametrize(
    ("file", "dims", "batched", "output"),
    [
        ((-1, 4), (4,), True, False),
        ((-1, -1), (4,), True, False),
        ((-1, 4), (-1, 4), False, False),
        ((2, 4), (2, 4), False, False),
        ((-1, -1), (7, 9), False, False),
        ((-1, 4), (-1,), True, True),
        ((), (1,), False, False),
        ((), (), False, False),
    ],
)
def test_fits(file: tuple[int, ...], dims: tuple[int, ...], batched: bool, output: bool) -> None:
    check_dims("m", "x", file, dims, batched=batched, output=output)


@pytest.mark.parametrize(
    ("file", "dims", "batched", "words"),
    [
        (
            (-1, 4),
            (4,),
            False,
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies"
            " 1 dimensions (shape [4])",
        ),
        (
            (-1, 4),
            (2, 2),
            True,
            "the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 3 dimensions (an"
            " initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete"
            " shape [-1,2,2])",
        ),
        ((-1, 4), (5,), True, "making complete shape [-1,5])"),
        ((-1, 4), (-1,), True, "making complete shape [-1,-1])"),
        ((2, 4), (4,), True, "the first dimension must be -1; but shape expected by the model is [2,4]"),
        ((), (4,), False, "scalar tensor 'x', should only provide 1 in the model configuration"),
    ],
)
def test_contradicts(file: tuple[int, ...], dims: tuple[int, ...], batched: bool, words: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_dims("m", "x", file, dims, batched=batched, output=False)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ("input { name: 'X' data_type: TYPE_FP32 dims: [4] } output { name: 'Y' data_type: TYPE_FP32 dims: [4] }", ""),
        (
            "input { name: 'X' data_type: TYPE_FP32 dims: [2, 2] } output { name: 'Y' data_type: TYPE_FP32 dims: [4] }",
            "model 'm', tensor 'X': the model expects 2 dimensions",
        ),
        (
            "input { name: 'X' data_type: TYPE_FP32 dims: [4] } output { name: 'Y' data_type: TYPE_FP32 dims: [4, 1] }",
            "model 'm', tensor 'Y': the model expects 2 dimensions",
        ),
        (
            "input { name: 'X' data_type: TYPE_FP32 dims: [2, 2] reshape { shape: [4] } }"
            " output { name: 'Y' data_type: TYPE_FP32 dims: [1, 4] reshape { shape: [4] } }",
            "",
        ),
    ],
)
def test_a_model_is_refused_when_it_loads(tmp_path: Path, dims: str, words: str) -> None:
    graph = [helper.make_node("Identity", ["X"], ["Y"])]
    value = [("X", TensorProto.FLOAT, ["batch", 4])]
    write_onnx(tmp_path / "m", onnx_bytes(graph, value, [("Y", TensorProto.FLOAT, ["batch", 4])]))
    write_config(tmp_path / "m", f'backend: "onnxruntime" max_batch_size: 4 {dims}')

    async def play() -> None:
        catalog = Catalog(Repository([tmp_path]), None, 30)
        try:
            if words:
                with pytest.raises(InvalidArgument, match=words):
                    await catalog.load("m")
            else:
                await catalog.load("m")
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))
