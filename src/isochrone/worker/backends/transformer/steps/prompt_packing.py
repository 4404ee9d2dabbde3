"""Prompts of a step as one array of 32-bit integers, padded up to a bucket of tokens. Nothing here knows torch.

A captured step reads the same places each time, so all that differs from step to step is in the array: tokens with
their positions and slots, the tiles that attention computes, the rows' tables of blocks, and which tokens are the last
of a row that samples. Tokens that only fill up are written to the scratch block and see nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np

from isochrone.worker.backends.generative import Row
from isochrone.worker.backends.transformer.steps.packing import Integers, Packer, bucket, sampling_values

#: Columns of a tile: the row of its table, its first token, that token's position, and its number of tokens. A tile of
#: tokens that only fill up has the position ``-tokens``: so its last token sees nothing. Without tokens: no work.
TILE_ROW, TILE_FIRST, TILE_POSITION, TILE_TOKENS = range(4)
#: Queries of a tile: tokens x the heads that share a head of keys. Hopper's matrix instructions take 64 at a time.
_TILE_QUERIES = 64
#: Parts of the array begin at multiples of this: aligned memory is read faster.
_ALIGNMENT = 4
_LEAST_BUCKET = 16
_SAMPLING = Struct("=fiff")


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
        self._sampling = data[: 4 * rows].data.cast("B")
        self._lasts = data[layouts.lasts : layouts.lasts + rows]
        self._views = {size: _views(layouts[size], data, rows, width) for size in layouts.buckets}
        self._positions = np.arange(self._packer.context_tokens, dtype=np.int32)
        most = max(layouts[size].tile_count for size in layouts.buckets)
        tokens = layouts.tile_tokens
        #: What a tile differs by from the first of all.
        self._tile_steps = np.arange(most, dtype=np.int32)[:, None] * np.array([0, tokens, tokens, -tokens], np.int32)

    def pack(self, rows: Sequence[Row]) -> PaddedPrompts:
        total = sum(len(row.tokens) for row in rows)
        return self._pack(rows, total, bucket(total, self._layouts.buckets))

    def fill(self, size: int) -> PaddedPrompts:
        """A bucket of tokens that only fill up."""
        return self._pack([], 0, size)

    def _pack(self, rows: Sequence[Row], total: int, size: int) -> PaddedPrompts:
        packer, width, block_tokens = self._packer, self._packer.table_width, self._packer.block_tokens
        (tokens, positions, slots), tiles, tables = self._views[size]
        spans: list[tuple[int, int, int]] = []
        lasts: list[int] = []
        begin = 0
        for number, row in enumerate(rows):
            count, start = len(row.tokens), row.start
            table = packer.table(row)
            packer.check_table(table)
            tables[number * width : number * width + len(table)] = table
            tokens[begin : begin + count] = row.tokens
            positions[begin : begin + count] = self._positions[start : start + count]
            spans.append((begin, start, count))
            begin += count
            if row.sampling is not None:
                _SAMPLING.pack_into(self._sampling, len(lasts) * _SAMPLING.size, *sampling_values(row.sampling))
                lasts.append(begin - 1)
        places, offsets = np.divmod(positions[:total], block_tokens)
        for number, (begin, _, count) in enumerate(spans):
            places[begin : begin + count] += number * width
        np.add(tables[places] * block_tokens, offsets, out=slots[:total])
        tokens[total:] = positions[total:] = 0
        slots[total:] = packer.scratch_block * block_tokens
        # Places that are not used keep the sampling of earlier steps: what they choose is dropped.
        self._lasts[: len(lasts)] = lasts
        self._lasts[len(lasts) :] = 0
        self._put_tiles(tiles, spans, total, size - total)
        return PaddedPrompts(size, len(lasts), self._layouts[size].tables + len(rows) * width)

    def _put_tiles(self, tiles: Integers, spans: list[tuple[int, int, int]], total: int, padding: int) -> None:
        most = self._layouts.tile_tokens
        firsts, counts, used = [], [], 0
        for row, (begin, start, count) in enumerate(spans):
            # As the first of all tiles would be, if all belonged to this row.
            before = used * most
            firsts.append((row, begin - before, start - before, count + before))
            counts.append(-(-count // most))
            used += counts[-1]
        fillers = used
        firsts.append((0, total - used * most, 0, padding + used * most))
        counts.append(-(-padding // most))
        used += counts[-1]
        written = tiles[:used]
        np.add(np.repeat(np.array(firsts, np.int32), counts, axis=0), self._tile_steps[:used], out=written)
        np.minimum(written[:, TILE_TOKENS], most, out=written[:, TILE_TOKENS])
        np.negative(tiles[fillers:used, TILE_TOKENS], out=tiles[fillers:used, TILE_POSITION])
        tiles[used:] = 0


def _views(layout: PromptLayout, data: Integers, rows: int, width: int) -> tuple[Integers, Integers, Integers]:
    """Tokens with positions and slots, tiles, and the tables in a row. Buckets share the memory: a table is right only
    as far as the row's own blocks."""
    return (
        data[layout.tokens : layout.tokens + 3 * layout.bucket].reshape(3, layout.bucket),
        data[layout.tiles : layout.tiles + 4 * layout.tile_count].reshape(layout.tile_count, 4),
        data[layout.tables : layout.tables + rows * width],
    )


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
