"""Rows of a step as arrays of 32-bit integers, ready for one copy to the device. Nothing here knows torch.

Rows of one token are a batch of fixed size, padded up to a bucket; longer rows are one flat list of tokens. Rows that
only fill up read and write the scratch block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import GenerationLimits, Row, Sampling

Integers = npt.NDArray[np.int32]

# Columns of a row's record in front of its table of blocks.
TOKEN, POSITION, SLOT, LENGTH, TEMPERATURE, TOP_K, TOP_P, UNIFORM = range(8)
TABLE = 8
_GREEDY = Sampling(temperature=0.0)
#: The largest below 1: rounding must not leave [0, 1).
_LARGEST_UNIFORM = float(np.nextafter(np.float32(1), np.float32(0)))
_MOST_TOP_K = 2**31 - 1


def row_buckets(most: int) -> tuple[int, ...]:
    """The sizes of batches: 1, 2, 4, 8, 16, 24, … and ``most``."""
    sizes = {size for size in (1, 2, 4, 8) if size < most} | set(range(16, most, 8)) | {most}
    return tuple(sorted(sizes))


def width_buckets(most: int) -> tuple[int, ...]:
    """The widths of tables of blocks: four per doubling, and ``most``."""
    widths, width = [], 1
    while width < most:
        widths.append(width)
        width += max(1, 2 ** (width.bit_length() - 3)) if width >= 4 else 1
    return (*widths, most)


def bucket(count: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds ``count``, which is at most the largest."""
    return buckets[bisect_left(buckets, count)]


class Packer:
    """Checks and packs the rows of steps of one model."""

    def __init__(self, limits: GenerationLimits, vocabulary: int) -> None:
        self._limits = limits
        self._vocabulary = vocabulary
        self.scratch_block = limits.blocks
        #: Of the longest sequence.
        self.table_width = -(-limits.context_tokens // limits.block_tokens)
        self.row_buckets = row_buckets(limits.rows)
        self.width_buckets = width_buckets(self.table_width)

    @property
    def record(self) -> int:
        """Integers of a row of one token."""
        return TABLE + self.table_width

    @property
    def prompt_capacity(self) -> int:
        """Most integers of the prompts of a step."""
        return 3 * self._limits.prefill_tokens + self._limits.rows * (5 + self.table_width)

    def check(self, rows: Sequence[Row]) -> None:
        """Rejects rows that would read or write memory that is not theirs, or none."""
        limits = self._limits
        if not 0 < len(rows) <= limits.rows:
            raise InvalidArgument(f"rows of a step: expected 1 to {limits.rows}, given {len(rows)}")
        prompt = 0
        for row in rows:
            count = len(row.tokens)
            end = row.start + count
            prompt += count if count > 1 else 0
            if count < 1 or row.start < 0:
                raise InvalidArgument(f"row of a step: expected tokens, given {count} from position {row.start}")
            if end > limits.context_tokens:
                raise InvalidArgument(f"tokens of a sequence: expected at most {limits.context_tokens}, given {end}")
            if len(row.blocks) * limits.block_tokens < end:
                expected = -(-end // limits.block_tokens)
                raise InvalidArgument(f"blocks of a sequence: expected at least {expected}, given {len(row.blocks)}")
            if min(row.tokens) < 0 or max(row.tokens) >= self._vocabulary:
                given = min(row.tokens) if min(row.tokens) < 0 else max(row.tokens)
                raise InvalidArgument(f"token: expected 0 to {self._vocabulary - 1}, given {given}")
            if min(row.blocks) < 0 or max(row.blocks) > self.scratch_block:
                raise InvalidArgument(f"block: expected 0 to {limits.blocks - 1}, given {list(row.blocks)}")
        if prompt > limits.prefill_tokens:
            raise InvalidArgument(f"tokens of prompts: expected at most {limits.prefill_tokens}, given {prompt}")


class DecodeBatch:
    """The records of rows with one token each, in an array [rows, record] that every step reuses.

    Tables of blocks rarely change from step to step: those that did not are not written again.
    """

    def __init__(self, packer: Packer, records: Integers) -> None:
        self._packer = packer
        self._records = records
        self._floats = records.view(np.float32)
        self._tables: list[tuple[int, ...]] = [()] * len(records)
        records[:] = 0
        # Also the unused ends of tables must name blocks.
        records[:, TABLE:] = packer.scratch_block

    def pack(self, rows: Sequence[Row], block_tokens: int) -> tuple[int, int]:
        """Writes the records, filled up to a bucket; returns their number and the width of their tables."""
        count = len(rows)
        size = bucket(count, self._packer.row_buckets)
        scratch = self._packer.scratch_block
        slots, widest = [], 1
        for number, row in enumerate(rows):
            used = row.start // block_tokens + 1
            table = tuple(row.blocks[:used])
            if self._tables[number] != table:
                self._tables[number] = table
                self._records[number, TABLE : TABLE + used] = table
            slots.append(table[-1] * block_tokens + row.start % block_tokens)
            widest = max(widest, used)
        for number in range(count, size):
            if self._tables[number] != (scratch,):
                self._tables[number] = (scratch,)
                self._records[number, TABLE] = scratch
        records = self._records
        records[count:size, :TABLE] = 0
        records[count:size, SLOT] = scratch * block_tokens
        records[count:size, LENGTH] = 1
        records[:count, TOKEN] = [row.tokens[0] for row in rows]
        starts = [row.start for row in rows]
        records[:count, POSITION] = starts
        records[:count, SLOT] = slots
        records[:count, LENGTH] = starts
        records[:count, LENGTH] += 1
        _put_sampling([row.sampling for row in rows], records[:count].T, self._floats[:count].T, TEMPERATURE)
        return size, bucket(widest, self._packer.width_buckets)


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Where the parts of packed prompts are: tokens, positions and slots [tokens]; then for each row with a sampling
    the index of its last token, temperature, top-k, top-p and uniform; then the tables."""

    tokens: int
    sampled: int
    #: (begin, end, start, offset of the table, its width) of each row.
    chunks: list[tuple[int, int, int, int, int]]
    size: int


def pack_prompts(rows: Sequence[Row], block_tokens: int, data: Integers) -> PackedPrompts:
    """Packs rows of several tokens into ``data``."""
    total = sum(len(row.tokens) for row in rows)
    sampled = [row.sampling for row in rows if row.sampling is not None]
    heads = data[: 3 * total].reshape(3, total)
    values = data[3 * total : 3 * total + 5 * len(sampled)].reshape(5, len(sampled))
    begin, offset, chunks, lasts = 0, 3 * total + values.size, [], []
    for row in rows:
        end = begin + len(row.tokens)
        positions = np.arange(row.start, row.start + len(row.tokens), dtype=np.int32)
        used = int(positions[-1]) // block_tokens + 1
        table = np.asarray(row.blocks[:used], np.int32)
        heads[0, begin:end] = row.tokens
        heads[1, begin:end] = positions
        heads[2, begin:end] = table[positions // block_tokens] * block_tokens + positions % block_tokens
        data[offset : offset + used] = table
        chunks.append((begin, end, row.start, offset, used))
        if row.sampling is not None:
            lasts.append(end - 1)
        begin, offset = end, offset + used
    values[0] = lasts
    _put_sampling(sampled, values, values.view(np.float32), 1)
    return PackedPrompts(total, len(sampled), chunks, offset)


def _put_sampling(sampling: Sequence[Sampling | None], integers: Any, floats: Any, first: int) -> None:
    """Writes temperature, top-k, top-p and uniform into the rows from ``first`` on of [values, rows]."""
    given = [_GREEDY if each is None else each for each in sampling]
    floats[first] = [each.temperature for each in given]
    integers[first + 1] = [min(each.top_k, _MOST_TOP_K) for each in given]
    floats[first + 2] = [each.top_p for each in given]
    floats[first + 3] = [min(each.uniform, _LARGEST_UNIFORM) for each in given]
