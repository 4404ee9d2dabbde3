"""Prompts of a step on a GPU: all of them in one pass over a bucket of tokens, in memory that stays in its place, so
that the pass can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from isochrone.worker.backends.generative import Row
from isochrone.worker.backends.transformer.architecture import Decoder, hidden_states, logits_of
from isochrone.worker.backends.transformer.attention.attention import PromptAttention, tiled_attend
from isochrone.worker.backends.transformer.steps.packing import Packer
from isochrone.worker.backends.transformer.steps.prompt_packing import (
    PaddedPrompts,
    PromptBatch,
    PromptLayouts,
    tile_tokens,
)
from isochrone.worker.backends.transformer.steps.staging import StagedInput


class TiledPrompts:
    """``pack`` writes a step's prompts, ``compute`` runs them, ``logits`` reads the rows that sample."""

    def __init__(
        self, decoder: Decoder, cache: Any, packer: Packer, attention: PromptAttention, buffers: int = 1
    ) -> None:
        self._decoder, self._cache, self._packer = decoder, cache, packer
        self._attention = attention
        self._layouts = PromptLayouts(packer, tile_tokens(decoder.shape.heads // decoder.shape.kv_heads))
        self._input = StagedInput(self._layouts.capacity, cache.device, buffers)
        self._batches = [PromptBatch(self._layouts, array) for array in self._input.arrays]
        #: The last states of the rows that sample, and garbage.
        self._states = torch.zeros((packer.rows, decoder.shape.width), dtype=cache.dtype, device=cache.device)
        #: Temperature, top-k, top-p and uniform of the rows that sample: [rows, 4].
        self.sampling = self._input.tensor[: 4 * packer.rows].view(-1, 4)

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._layouts.buckets

    def pack(self, rows: Sequence[Row], buffer: int = 0) -> PaddedPrompts:
        packed = self._batches[buffer].pack(rows)
        self._input.upload(packed.size, buffer)
        return packed

    def fill(self, bucket: int) -> None:
        """Packs tokens that only fill up: what a capture runs with."""
        self._input.upload(self._batches[0].fill(bucket).size)

    def compute(self, bucket: int) -> None:
        """Runs what is packed through the decoder."""
        layout, data, rows = self._layouts[bucket], self._input.tensor, self._packer.rows
        tokens, positions, slots = data[layout.tokens : layout.tokens + 3 * bucket].view(3, bucket)
        tiles = data[layout.tiles : layout.tiles + 4 * layout.tile_count].view(-1, 4)
        tables = data[layout.tables : layout.tables + rows * self._packer.table_width].view(rows, -1)
        attend = tiled_attend(self._cache, slots.long(), tables, tiles, self._layouts.tile_tokens, self._attention)
        states = hidden_states(self._decoder, tokens, positions, attend)
        lasts = data[self._layouts.lasts : self._layouts.lasts + rows]
        self._states.copy_(states.index_select(0, lasts))

    def logits(self, size: int) -> Any:
        """Of the first ``size`` rows that sample."""
        return logits_of(self._decoder, self._states[:size])
