"""Prompts as one padded array: where each token, its slot, its tile and the rows that sample are found."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import GenerationLimits, Row, Sampling
from isochrone.worker.backends.transformer.steps.packing import Integers, Packer
from isochrone.worker.backends.transformer.steps.prompt_packing import (
    PaddedPrompts,
    PromptBatch,
    PromptLayouts,
    tile_tokens,
    token_buckets,
)

BLOCK, SCRATCH = 4, 40
LIMITS = GenerationLimits(context_tokens=50, block_tokens=BLOCK, blocks=SCRATCH, rows=9, prefill_tokens=100)


class Packed:
    """The parts of the array, as a captured step reads them."""

    def __init__(self, most_of_a_tile: int, limits: GenerationLimits = LIMITS) -> None:
        self.layouts = PromptLayouts(Packer(limits, vocabulary=1000), most_of_a_tile)
        self.data: Integers = np.full(self.layouts.capacity, 12345, np.int32)
        self.batch = PromptBatch(self.layouts, self.data)
        self.rows = limits.rows

    def read(self, packed: PaddedPrompts) -> None:
        layout = self.layouts[packed.bucket]
        data = self.data.copy()
        data[packed.size :] = -9  # it is not copied to the device
        self.tokens, self.positions, self.slots = data[layout.tokens :][: 3 * packed.bucket].reshape(3, -1).tolist()
        self.tiles = data[layout.tiles :][: 4 * layout.tile_count].reshape(-1, 4).tolist()
        width = self.layouts.packer.table_width
        self.tables = data[layout.tables :][: self.rows * width].reshape(self.rows, width)
        self.lasts = data[self.layouts.lasts :][: self.rows].tolist()
        self.sampling = data[: 4 * self.rows].reshape(self.rows, 4)


def test_buckets_and_tiles() -> None:
    assert token_buckets(2) == (2,)
    assert token_buckets(16) == (16,)
    assert token_buckets(100) == (16, 32, 64, 100)
    assert token_buckets(512) == (16, 32, 64, 128, 192, 256, 384, 512)
    assert token_buckets(700) == (16, 32, 64, 128, 192, 256, 384, 512, 700)
    assert [tile_tokens(group) for group in (1, 4, 7, 64, 71)] == [64, 16, 9, 1, 1]


@given(most=st.integers(2, 65536))
def test_buckets_grow_to_the_most(most: int) -> None:
    buckets = token_buckets(most)
    assert buckets == tuple(sorted(set(buckets)))
    assert buckets[-1] == most
    assert all(large <= 2 * small for small, large in pairwise(buckets))


def test_a_packed_step() -> None:
    packed = Packed(most_of_a_tile=2)
    rows = [Row([10, 11, 12], 3, [5, 6, 7], None), Row([20, 21], 0, [9], Sampling(0.5, 2, 0.25, 0.75))]
    found = packed.batch.pack(rows)
    packed.read(found)
    assert (found.bucket, found.sampled) == (16, 1)
    assert packed.tokens == [10, 11, 12, 20, 21] + [0] * 11
    assert packed.positions == [3, 4, 5, 0, 1] + [0] * 11
    assert packed.slots == [23, 24, 25, 36, 37] + [SCRATCH * BLOCK] * 11
    assert packed.tables[:2, :2].tolist() == [[5, 6], [9, packed.tables[1, 1]]]
    fillers = [[0, first, -2, 2] for first in (5, 7, 9, 11, 13)] + [[0, 15, -1, 1]]
    assert packed.tiles[:9] == [[0, 0, 3, 2], [0, 2, 5, 1], [1, 3, 0, 2], *fillers]
    assert all(tile == [0, 0, 0, 0] for tile in packed.tiles[9:])
    assert packed.lasts == [4] + [0] * 8
    assert packed.sampling[0].view(np.float32)[[0, 2, 3]].tolist() == [0.5, 0.25, 0.75]
    assert packed.sampling[0, 1] == 2


@st.composite
def steps(draw: st.DrawFn) -> list[Row]:
    """Rows that a step may have: no block twice, as many tokens as ``LIMITS`` allows."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    rows: list[Row] = []
    left = LIMITS.prefill_tokens
    for count in draw(st.lists(st.integers(2, 50), min_size=1, max_size=LIMITS.rows)):
        if count > left:
            break
        left -= count
        start = chance.randint(0, LIMITS.context_tokens - count)
        blocks = [chance.randrange(SCRATCH) for _ in range(-(-(start + count) // BLOCK) + chance.randint(0, 2))]
        sampling = Sampling(chance.random(), chance.randint(0, 2**40), chance.random(), chance.random())
        tokens = [chance.randrange(1000) for _ in range(count)]
        rows.append(Row(tokens, start, blocks, chance.choice([None, sampling])))
    return rows


@settings(max_examples=60, deadline=None)
@given(sequence=st.lists(steps(), min_size=1, max_size=4), most=st.sampled_from([1, 3, 9, 16, 64]))
def test_every_token_is_where_its_row_says(sequence: list[list[Row]], most: int) -> None:
    packed = Packed(most)
    for rows in sequence:
        packed.layouts.packer.check(rows)
        found = packed.batch.pack(rows)
        packed.read(found)
        total = sum(len(row.tokens) for row in rows)
        assert total <= found.bucket <= max(16, 2 * total)
        assert found.size <= packed.layouts.capacity
        flat = [(number, offset, token) for number, row in enumerate(rows) for offset, token in enumerate(row.tokens)]
        for place, (number, offset, token) in enumerate(flat):
            position = rows[number].start + offset
            assert (packed.tokens[place], packed.positions[place]) == (token, position)
            assert packed.slots[place] == rows[number].blocks[position // BLOCK] * BLOCK + position % BLOCK
        assert packed.slots[total:] == [SCRATCH * BLOCK] * (found.bucket - total)
        assert set(packed.tokens[total:]) <= {0}
        assert set(packed.positions[total:]) <= {0}

        # Each token is in one tile, and a tile's table has what its tokens see.
        covered = []
        for row, first, position, count in packed.tiles:
            assert 0 <= count <= most
            for place in range(first, first + count):
                covered.append(place)
                if place < total:
                    number, offset, _ = flat[place]
                    assert (row, position + place - first) == (number, rows[number].start + offset)
                else:
                    assert position + count == 0
            if position >= 0 and count:
                used = -(-(position + count) // BLOCK)
                assert packed.tables[row, :used].tolist() == list(rows[row].blocks[:used])
        assert sorted(covered) == list(range(found.bucket))

        sampled = [(number, row.sampling) for number, row in enumerate(rows) if row.sampling is not None]
        assert found.sampled == len(sampled)
        assert packed.lasts[len(sampled) :] == [0] * (LIMITS.rows - len(sampled))
        for place, (number, sampling) in enumerate(sampled):
            number_of, offset, _ = flat[packed.lasts[place]]
            assert (number_of, offset) == (number, len(rows[number].tokens) - 1)
            floats = packed.sampling[place].view(np.float32)
            assert floats[[0, 2, 3]] == pytest.approx([sampling.temperature, sampling.top_p, sampling.uniform])
            assert packed.sampling[place, 1] == min(sampling.top_k, 2**31 - 1)


@given(
    rows=st.integers(1, 70),
    prefill_tokens=st.integers(2, 600),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 71]),
    many=st.booleans(),
)
@settings(deadline=None)
def test_any_step_fits_its_bucket(rows: int, prefill_tokens: int, group: int, many: bool) -> None:
    limits = GenerationLimits(2000, 16, 500, rows, prefill_tokens)
    packed = Packed(tile_tokens(group), limits)
    for size in packed.layouts.buckets:
        # Many short rows have the most tiles that are not full; one token more begins another tile.
        count = max(2, size // rows) if many else min(size, packed.layouts.tile_tokens + 1)
        number = min(rows, size // count)
        step = [Row([1] * max(2, count), 7, list(range(130)), Sampling())] * number if count > 1 else []
        found = packed.batch.pack(step) if step else packed.batch.fill(size)
        packed.read(found)
        assert sum(tile[3] for tile in packed.tiles) == found.bucket


def test_a_bucket_can_be_filled_up_alone() -> None:
    packed = Packed(most_of_a_tile=16)
    found = packed.batch.fill(64)
    packed.read(found)
    assert (found.bucket, found.sampled) == (64, 0)
    assert set(packed.slots) == {SCRATCH * BLOCK}
    assert [tile[2:] for tile in packed.tiles[:4]] == [[-16, 16]] * 4


def test_an_unknown_block_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="block"):
        Packed(16).batch.pack([Row([1, 2], 0, [SCRATCH + 1], None)])
