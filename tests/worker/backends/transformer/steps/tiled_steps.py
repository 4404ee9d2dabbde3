"""Steps on a CPU as they are on a GPU: padded prompts, parts that are captured, two in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch.nn import functional

from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.backends.transformer.architecture import build_decoder
from isochrone.worker.backends.transformer.attention.attention import gathered_decode, new_cache
from isochrone.worker.backends.transformer.checkpoint.checkpoint import open_checkpoint
from isochrone.worker.backends.transformer.steps import steps as steps_module
from isochrone.worker.backends.transformer.steps.graphs import PartKey
from isochrone.worker.backends.transformer.steps.steps import Steps


def tile_by_tile(queries: Any, keys: Any, values: Any, tables: Any, tiles: Any, most: int) -> Any:
    """``attention.PromptAttention`` in torch, which fails where a token is in no tile or sees too much."""
    attended = torch.full_like(queries, float("nan"))
    group = queries.shape[1] // keys.shape[2]
    for row, first, position, count in tiles.tolist():
        assert count <= most
        end = position + count
        if end <= 0:
            attended[first : first + count] = 0
            continue
        table = tables[row, : -(-end // keys.shape[1])]
        # [heads, places, head_dim]
        seen = [held[table].flatten(0, 1)[:end].repeat_interleave(group, 1).transpose(0, 1) for held in (keys, values)]
        mask = torch.arange(end) <= torch.arange(position, end).unsqueeze(1)
        asked = queries[first : first + count].transpose(0, 1)
        result = functional.scaled_dot_product_attention(asked, *seen, attn_mask=mask)
        attended[first : first + count] = result.transpose(0, 1)
    return attended


class Recorded:
    """In place of CUDA graphs: keeps the functions and calls them again."""

    def __init__(self, stream: Any) -> None:
        assert stream is None
        self._functions: dict[PartKey, Callable[[], None]] = {}

    def capture(self, parts: Iterable[tuple[PartKey, Callable[[], None]]]) -> None:
        for key, function in parts:
            function()
            assert key not in self._functions
            self._functions[key] = function

    def replay(self, key: PartKey) -> None:
        self._functions[key]()


def steps_of(directory: Path, limits: GenerationLimits, *, is_tiled: bool = False, ahead: bool = False) -> Steps:
    """``is_tiled``: prompts are padded, and the parts of steps are captured by ``warm``."""
    checkpoint = open_checkpoint(safetensors, directory)
    shape = checkpoint.shape
    with checkpoint.tensors(safetensors, "cpu") as get, torch.inference_mode():
        decoder = build_decoder(shape, lambda name: get(name).to(torch.float32, copy=True), checkpoint.prefix)
        sizes = (shape.layers, limits.blocks, limits.block_tokens, shape.kv_heads, shape.head_dim)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps_module, "StepGraphs", Recorded)
            return Steps(
                decoder,
                new_cache(*sizes, decoder.embedding),
                limits,
                gathered_decode,
                tile_by_tile if is_tiled else None,
                fixed_width=is_tiled,
                graphs=is_tiled,
                ahead=ahead,
            )
