"""Rows as arrays: buckets, padding, slots and what is reused from step to step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import GenerationLimits, Row, Sampling
from isochrone.worker.backends.transformer.steps import packing

LIMITS = GenerationLimits(context_tokens=50, block_tokens=4, blocks=40, rows=9, prefill_tokens=64)
PACKER = packing.Packer(LIMITS, vocabulary=1000)
SCRATCH = 40


def test_buckets() -> None:
    assert packing.row_buckets(1) == (1,)
    assert packing.row_buckets(6) == (1, 2, 4, 6)
    assert packing.row_buckets(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert packing.row_buckets(20) == (1, 2, 4, 8, 16, 20)
    assert packing.width_buckets(1) == (1,)
    assert packing.width_buckets(32) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)


@given(most=st.integers(1, 3000), count=st.integers(1, 3000))
def test_every_count_has_a_bucket_that_is_not_much_larger(most: int, count: int) -> None:
    if count > most:
        return
    for buckets in (packing.row_buckets(most), packing.width_buckets(most)):
        found = packing.bucket(count, buckets)
        assert count <= found <= most
        assert buckets == tuple(sorted(set(buckets)))
    assert packing.bucket(count, packing.width_buckets(most)) <= count * 1.25 + 1


def batch() -> tuple[packing.DecodeBatch, packing.Integers]:
    records = np.full((LIMITS.rows, PACKER.record), 77, np.int32)
    return packing.DecodeBatch(PACKER, records), records


def test_a_batch_is_filled_up_with_rows_of_the_scratch_block() -> None:
    packed, records = batch()
    rows = [
        Row([5], 6, [3, 9], Sampling(0.5, 7, 0.25, 0.75)),
        Row([6], 0, [1], None),
        Row([7], 11, [8, 2, 4, 30], Sampling(0.0, 3, 0.5, 0.5)),
    ]
    assert packed.pack(rows) == (4, 3)
    assert records[:4, packing.TOKEN].tolist() == [5, 6, 7, 0]
    assert records[:4, packing.POSITION].tolist() == [6, 0, 11, 0]
    assert records[:4, packing.SLOT].tolist() == [9 * 4 + 2, 4, 4 * 4 + 3, SCRATCH * 4]
    assert records[:4, packing.LENGTH].tolist() == [7, 1, 12, 1]
    assert records[:4, packing.TABLE : packing.TABLE + 3].tolist() == [
        [3, 9, SCRATCH],
        [1, SCRATCH, SCRATCH],
        [8, 2, 4],
        [SCRATCH, SCRATCH, SCRATCH],
    ]
    floats = records.view(np.float32)
    assert floats[:4, packing.TEMPERATURE].tolist() == [0.5, 0, 0, 0]
    assert records[:4, packing.TOP_K].tolist() == [7, 0, 3, 0]
    assert floats[:3, packing.TOP_P].tolist() == [0.25, 1, 0.5]
    assert floats[:3, packing.UNIFORM].tolist() == [0.75, 0, 0.5]


@settings(max_examples=50)
@given(seed=st.integers(0, 2**16))
def test_a_reused_batch_says_what_a_new_one_says(seed: int) -> None:
    chance = random.Random(seed)
    reused, records = batch()
    for _ in range(6):
        rows = []
        for _ in range(chance.randint(1, LIMITS.rows)):
            start = chance.randrange(LIMITS.context_tokens)
            blocks = [chance.randrange(LIMITS.blocks) for _ in range(start // 4 + 1 + chance.randint(0, 2))]
            rows.append(Row([chance.randrange(1000)], start, blocks, Sampling(chance.random(), 3, 0.5, 0.5)))
        size, width = reused.pack(rows)
        fresh, expected = batch()
        assert fresh.pack(rows) == (size, width)
        np.testing.assert_array_equal(records[:size, : packing.TABLE], expected[:size, : packing.TABLE])
        assert ((records[:, packing.TABLE :] >= 0) & (records[:, packing.TABLE :] <= SCRATCH)).all()
        for number, length in enumerate(records[:size, packing.LENGTH]):
            used = slice(packing.TABLE, packing.TABLE + -(-int(length) // 4))
            assert records[number, used].tolist() == expected[number, used].tolist()
            slot = int(records[number, packing.SLOT])
            assert slot // 4 == records[number, used][-1]


def test_a_table_that_grew_is_written_on() -> None:
    packed, records = batch()
    blocks = [3]
    packed.pack([Row([5], 3, blocks, None)])
    blocks += [9, 4]
    packed.pack([Row([5], 4, blocks, None)])
    assert records[0, packing.TABLE : packing.TABLE + 3].tolist() == [3, 9, SCRATCH]
    packed.pack([Row([5], 8, blocks, None), Row([6], 0, [7], None)])
    assert records[:2, packing.TABLE : packing.TABLE + 3].tolist() == [[3, 9, 4], [7, SCRATCH, SCRATCH]]
    # Another sequence with equal blocks, and fewer rows than before: the second record is filled up again.
    packed.pack([Row([5], 1, [8], None), Row([6], 1, [7], None), Row([6], 1, [2], None)])
    packed.pack([Row([5], 0, [1], None)] * 3)
    assert records[:4, packing.SLOT].tolist() == [4, 4, 4, SCRATCH * 4]


def test_a_table_with_an_unknown_block_is_rejected_each_time() -> None:
    packed, _ = batch()
    blocks = [1, SCRATCH + 1]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="block"):
            packed.pack([Row([5], 5, blocks, None)])


def test_prompts_are_one_flat_list() -> None:
    data = np.full(PACKER.prompt_capacity, 77, np.int32)
    rows = [
        Row([10, 11, 12], 3, [5, 6], None),
        Row([20, 21], 0, [9], Sampling(0.5, 2, 0.25, 0.75)),
    ]
    packed = packing.pack_prompts(PACKER, rows, data)
    assert (packed.tokens, packed.sampled) == (5, 1)
    tokens, positions, slots = data[:15].reshape(3, 5).tolist()
    assert tokens == [10, 11, 12, 20, 21]
    assert positions == [3, 4, 5, 0, 1]
    assert slots == [23, 24, 25, 36, 37]
    last, _, top_k, _, _ = data[15:20]
    assert (last, top_k) == (4, 2)
    assert data[15:20].view(np.float32)[[1, 3, 4]].tolist() == [0.5, 0.25, 0.75]
    assert [(begin, end, start) for begin, end, start, _, _ in packed.chunks] == [(0, 3, 3), (3, 5, 0)]
    assert [data[offset : offset + width].tolist() for _, _, _, offset, width in packed.chunks] == [[5, 6], [9]]
    assert packed.size == 23


def test_the_largest_step_fits() -> None:
    data = np.zeros(PACKER.prompt_capacity, np.int32)
    blocks = list(range(13))
    rows = [Row([1] * 7, 43, blocks, Sampling())] * 9
    PACKER.check(rows)
    assert packing.pack_prompts(PACKER, rows, data).size <= len(data)


@pytest.mark.parametrize("uniform", [0.99999999999, 1 - 2**-53])
def test_a_uniform_stays_below_one(uniform: float) -> None:
    packed, records = batch()
    packed.pack([Row([1], 0, [1], Sampling(1.0, 0, 1.0, uniform))])
    assert records.view(np.float32)[0, packing.UNIFORM] < 1
