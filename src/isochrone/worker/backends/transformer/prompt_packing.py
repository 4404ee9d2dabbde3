"""Prompts of a step as one array of 32-bit integers, padded up to a bucket of tokens. Nothing here knows torch.

A captured step reads the same places each time, so all that differs from step to step is in the array: tokens with
their positions and slots, the tiles that attention computes, the rows' tables of blocks, and which tokens are the last
of a row that samples. Tokens that only fill up are written to the scratch block and see nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isochrone.worker.backends.generative import Row
from isochrone.worker.backends.transformer.packing import Integers, Packer, bucket, sampling_values

#: Columns of a tile: the row of its table, its first token, that token's position, and its number of tokens. A tile of
#: tokens that only fill up has the position ``-tokens``: so its last token sees nothing. Without tokens: no work.
TILE_ROW, TILE_FIRST, TILE_POSITION, TILE_TOKENS = range(4)
#: Queries of a tile: tokens x the heads that share a head of keys. Hopper's matrix instructions take 64 at a time.
_TILE_QUERIES = 64
#: Parts of the array begin at multiples of this: aligned memory is read faster.
_ALIGNMENT = 4
_LEAST_BUCKET = 16


def token_buckets(most: int) -> tuple[int, ...]:
    """The numbers of tokens that are captured: 16, 32, 64, 128, then two per doubling, and ``most``."""
    sizes, size = [], _LEAST_BUCKET
    while size < most:
        sizes.append(size)
        if size >= 128 and size * 3 // 2 < most:
            sizes.append(size * 3 // 2)
        size *= 2
    return (*sizes, most)


def tile_tokens(group: int) -> int:
    """Tokens of a tile, if ``group`` heads of queries share a head of keys."""
    return max(1, _TILE_QUERIES // group)


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """Where the parts are in the array of one bucket. In front of them is what does not depend on the bucket."""

    bucket: int
    #: Tokens, positions and slots: [3, bucket].
    tokens: int
    #: [tiles, 4].
    tiles: int
    tile_count: int
    #: [rows, table width]; the last part, so that only the tables in use are copied.
    tables: int


class PromptLayouts:
    """The layouts of one model's buckets."""

    def __init__(self, packer: Packer, tile_tokens: int) -> None:
        self.packer = packer
        self.tile_tokens = tile_tokens
        self.buckets = token_buckets(packer.prefill_tokens)
        rows = packer.rows
        #: Sampling of the rows that sample: [rows, 4], from the beginning of the array.
        self.sampling = 0
        #: Their last tokens: [rows].
        self.lasts = 4 * rows
        self._of = {size: self._layout(size) for size in self.buckets}
        self.capacity = max(each.tables for each in self._of.values()) + rows * packer.table_width

    def __getitem__(self, size: int) -> PromptLayout:
        return self._of[size]

    def _layout(self, size: int) -> PromptLayout:
        tokens = _aligned(self.lasts + self.packer.rows)
        tiles = _aligned(tokens + 3 * size)
        # Each row has two tokens at least, and at most one tile that is not full; so do the tokens that fill up.
        rows = min(self.packer.rows, size // 2) + 1
        tile_count = min(size, (size + rows * (self.tile_tokens - 1)) // self.tile_tokens)
        return PromptLayout(size, tokens, tiles, tile_count, _aligned(tiles + 4 * tile_count))


class PaddedPrompts(NamedTuple):
    """What was packed."""

    #: Tokens, with those that fill up.
    bucket: int
    #: Rows that sample.
    sampled: int
    #: Integers of the array that are in use.
    size: int


class PromptBatch:
    """Packs rows of several tokens into an array that every step reuses."""

    def __init__(self, layouts: PromptLayouts, data: Integers) -> None:
        self._layouts, self._packer = layouts, layouts.packer
        rows, width = self._packer.rows, self._packer.table_width
        self._sampling = data[: 4 * rows].reshape(rows, 4)
        self._sampling_floats = self._sampling.view(np.float32)
        self._lasts = data[layouts.lasts : layouts.lasts + rows]
        self._views = {size: _views(layouts[size], data, rows, width) for size in layouts.buckets}

    def pack(self, rows: Sequence[Row]) -> PaddedPrompts:
        total = sum(len(row.tokens) for row in rows)
        return self._pack(rows, bucket(total, self._layouts.buckets))

    def fill(self, size: int) -> PaddedPrompts:
        """A bucket of tokens that only fill up."""
        return self._pack([], size)

    def _pack(self, rows: Sequence[Row], size: int) -> PaddedPrompts:
        packer, layout = self._packer, self._layouts[size]
        block_tokens, scratch = packer.block_tokens, packer.scratch_block
        (tokens, positions, slots), tiles, tables = self._views[size]
        counts = np.array([len(row.tokens) for row in rows], np.int32)
        starts = np.array([row.start for row in rows], np.int32)
        ends = counts.cumsum(dtype=np.int32)
        begins = ends - counts
        total = int(ends[-1]) if rows else 0
        for number, row in enumerate(rows):
            table = packer.table(row)
            packer.check_table(table)
            tables[number, : len(table)] = table
            tokens[begins[number] : ends[number]] = row.tokens
        places = np.repeat(starts - begins, counts) + np.arange(total, dtype=np.int32)
        blocks = tables[np.repeat(np.arange(len(rows)), counts), places // block_tokens]
        positions[:total] = places
        slots[:total] = blocks * block_tokens + places % block_tokens
        tokens[total:] = 0
        positions[total:] = 0
        slots[total:] = scratch * block_tokens
        self._put_tiles(tiles, counts, starts, begins, size - total)
        sampled = self._put_sampling(rows, ends)
        return PaddedPrompts(size, sampled, layout.tables + len(rows) * packer.table_width)

    def _put_tiles(self, tiles: Integers, counts: Integers, starts: Integers, begins: Integers, padding: int) -> None:
        most, total = self._layouts.tile_tokens, int(counts.sum())
        # The tokens that fill up are one more row, in front of whose positions nothing is.
        counts, starts, begins = np.append(counts, padding), np.append(starts, 0), np.append(begins, total)
        per_row = -(-counts // most)
        used = int(per_row.sum())
        rows = np.repeat(np.arange(len(counts)), per_row)
        before = (np.arange(used) - np.repeat(per_row.cumsum() - per_row, per_row)) * most
        tiles[:used, TILE_ROW] = rows
        tiles[:used, TILE_FIRST] = begins[rows] + before
        tiles[:used, TILE_POSITION] = starts[rows] + before
        tiles[:used, TILE_TOKENS] = np.minimum(most, counts[rows] - before)
        fillers = tiles[used - int(per_row[-1]) : used]
        fillers[:, TILE_ROW] = 0
        fillers[:, TILE_POSITION] = -fillers[:, TILE_TOKENS]
        tiles[used:] = 0

    def _put_sampling(self, rows: Sequence[Row], ends: Integers) -> int:
        sampled = 0
        values, floats = self._sampling, self._sampling_floats
        # Places that are not used keep values of earlier steps: what they choose is dropped.
        self._lasts[:] = 0
        for number, row in enumerate(rows):
            if row.sampling is not None:
                floats[sampled, 0], values[sampled, 1], floats[sampled, 2], floats[sampled, 3] = sampling_values(
                    row.sampling
                )
                self._lasts[sampled] = ends[number] - 1
                sampled += 1
        return sampled


def _views(layout: PromptLayout, data: Integers, rows: int, width: int) -> tuple[Integers, Integers, Integers]:
    """Tokens with positions and slots, tiles, tables. Buckets share the memory: a table is only right as far as the
    row's own blocks."""
    return (
        data[layout.tokens : layout.tokens + 3 * layout.bucket].reshape(3, layout.bucket),
        data[layout.tiles : layout.tiles + 4 * layout.tile_count].reshape(layout.tile_count, 4),
        data[layout.tables : layout.tables + rows * width].reshape(rows, width),
    )


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
