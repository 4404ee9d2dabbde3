"""The words that the fixtures and tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

Shape = Sequence[int | str | None]
WriteOnnx = Callable[..., Path]
WriteModel = Callable[..., Path]

IDENTITY = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
