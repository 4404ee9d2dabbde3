"""Rows of a step as arrays of 32-bit integers, ready for one copy to the device. Nothing here knows torch.

Rows of one token are a batch of fixed size, padded up to a bucket; longer rows are one flat list of tokens. Rows that
only fill up read and write the scratch block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import GenerationLimits, Row, Sampling

Integers = npt.NDArray[np.int32]

# Columns of a row's record in front of its table of blocks.
TOKEN, POSITION, SLOT, LENGTH, TEMPERATURE, TOP_K, TOP_P, UNIFORM = range(8)
TABLE = 8
#: The columns in front of the table.
_HEAD = Struct("=4ififf")
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
        self.rows, self.prefill_tokens, self.context_tokens = limits.rows, limits.prefill_tokens, limits.context_tokens
        self.block_tokens = limits.block_tokens
        self.scratch_block = limits.blocks
        #: Of the longest sequence.
        self.table_width = -(-limits.context_tokens // limits.block_tokens)
        self.row_buckets = row_buckets(limits.rows)
        self.width_buckets = width_buckets(self.table_width)
        #: Integers of a row of one token.
        self.record = TABLE + self.table_width

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
        vocabulary, context, block_tokens = self._vocabulary, limits.context_tokens, limits.block_tokens
        for tokens, start, blocks, _, _ in rows:
            count = len(tokens)
            end = start + count
            if count == 1:
                low = high = tokens[0]
            elif count < 1:
                raise InvalidArgument("row of a step: expected tokens, given none")
            else:
                low, high = min(tokens), max(tokens)
                prompt += count
            if low < 0 or high >= vocabulary:
                raise InvalidArgument(f"token: expected 0 to {vocabulary - 1}, given {low if low < 0 else high}")
            if start < 0 or end > context:
                expected = f"expected positions from 0 to {context - 1}"
                raise InvalidArgument(f"tokens of a sequence: {expected}, given {start} to {end - 1}")
            if len(blocks) * block_tokens < end:
                needed = -(-end // block_tokens)
                raise InvalidArgument(f"blocks of a sequence: expected at least {needed}, given {len(blocks)}")
        if prompt > limits.prefill_tokens:
            raise InvalidArgument(f"tokens of prompts: expected at most {limits.prefill_tokens}, given {prompt}")

    def table(self, row: Row) -> tuple[int, ...]:
        """The blocks that a row's tokens see."""
        used = (row.start + len(row.tokens) - 1) // self._limits.block_tokens + 1
        return tuple(row.blocks) if len(row.blocks) == used else tuple(row.blocks[:used])

    def check_table(self, table: Sequence[int]) -> None:
        if min(table) < 0 or max(table) > self.scratch_block:
            raise InvalidArgument(f"block: expected 0 to {self.scratch_block - 1}, given {list(table)}")


class DecodeBatch:
    """The records of rows with one token each, in an array [rows, record] that every step reuses.

    Tables of blocks rarely change from step to step: what is known of them is not written again.
    """

    def __init__(self, packer: Packer, records: Integers) -> None:
        self._packer = packer
        self._records = records
        self._bytes = records.reshape(-1).data.cast("B")
        #: Of each record the blocks that its table was written from, and how many of them. The object is enough to know
        #: them again, since it only grows at its end; it is kept, so no other can be mistaken for it.
        self._blocks: list[Sequence[int]] = [()] * len(records)
        self._written = [0] * len(records)
        self._scratch = (packer.scratch_block,)
        records[:] = 0
        # Also the unused ends of tables must name blocks.
        records[:, TABLE:] = packer.scratch_block

    def pack(self, rows: Sequence[Row], places: Sequence[int | None] = ()) -> tuple[int, int]:
        """Writes the records, filled up to a bucket; returns their number and the width of their tables.

        ``places``: where the results of the rows of the step before are, for rows that follow one: instead of a token,
        such a record has ``-1 - place``.
        """
        packer, held, written, data = self._packer, self._blocks, self._written, self._bytes
        block_tokens, stride, widest, offset = packer.block_tokens, packer.record * 4, 1, 0
        for number, (tokens, start, blocks, sampling, follows) in enumerate(rows):
            token = tokens[0] if follows < 0 else -1 - _place(places, follows)
            used = start // block_tokens + 1
            if held[number] is not blocks or written[number] < used:
                self._put_table(number, blocks, used)
            temperature, top_k, top_p, uniform = sampling or _GREEDY
            slot = blocks[used - 1] * block_tokens + start % block_tokens
            if top_k > _MOST_TOP_K or uniform > _LARGEST_UNIFORM:
                _, top_k, _, uniform = sampling_values(Sampling(temperature, top_k, top_p, uniform))
            # For up to 64 rows it takes no longer than one assignment per column of numpy, and for few much less.
            _HEAD.pack_into(data, offset, token, start, slot, start + 1, temperature, top_k, top_p, uniform)
            offset += stride
            if used > widest:
                widest = used
        size = bucket(len(rows), packer.row_buckets)
        for number in range(len(rows), size):
            if held[number] is not self._scratch:
                self._put_table(number, self._scratch, 1)
                slot = packer.scratch_block * block_tokens
                _HEAD.pack_into(data, number * stride, 0, 0, slot, 1, *sampling_values(_GREEDY))
        return size, bucket(widest, packer.width_buckets)

    def _put_table(self, number: int, blocks: Sequence[int], used: int) -> None:
        known = self._written[number] if self._blocks[number] is blocks else 0
        fresh = blocks[known:used]
        # Until it is whole, nothing is known of it.
        self._blocks[number] = ()
        self._packer.check_table(fresh)
        self._records[number, TABLE + known : TABLE + used] = fresh
        self._blocks[number], self._written[number] = blocks, used


def _place(places: Sequence[int | None], row: int) -> int:
    """0 where the step before failed: any place will do, since the sequences of its rows fail, too."""
    place = places[row] if row < len(places) else None
    return place or 0


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Where the parts of packed prompts are: tokens, positions and slots [tokens]; then for each row with a sampling
    the index of its last token, temperature, top-k, top-p and uniform; then the tables."""

    tokens: int
    sampled: int
    #: (begin, end, start, offset of the table, its width) of each row.
    chunks: list[tuple[int, int, int, int, int]]
    size: int


def pack_prompts(packer: Packer, rows: Sequence[Row], data: Integers) -> PackedPrompts:
    """Packs rows of several tokens into ``data``."""
    block_tokens = packer.block_tokens
    total = sum(len(row.tokens) for row in rows)
    sampled = [row.sampling for row in rows if row.sampling is not None]
    heads = data[: 3 * total].reshape(3, total)
    begin, offset, chunks, lasts = 0, 3 * total + 5 * len(sampled), [], []
    for row in rows:
        held = packer.table(row)
        packer.check_table(held)
        table = np.asarray(held, np.int32)
        end = begin + len(row.tokens)
        positions = np.arange(row.start, row.start + len(row.tokens), dtype=np.int32)
        heads[0, begin:end] = row.tokens
        heads[1, begin:end] = positions
        heads[2, begin:end] = table[positions // block_tokens] * block_tokens + positions % block_tokens
        data[offset : offset + len(table)] = table
        chunks.append((begin, end, row.start, offset, len(table)))
        if row.sampling is not None:
            lasts.append(end - 1)
        begin, offset = end, offset + len(table)
    values = data[3 * total : 3 * total + 5 * len(sampled)].reshape(5, len(sampled))
    floats = values.view(np.float32)
    values[0] = lasts
    for number, sampling in enumerate(sampled):
        floats[1, number], values[2, number], floats[3, number], floats[4, number] = sampling_values(sampling)
    return PackedPrompts(total, len(sampled), chunks, offset)


def sampling_values(sampling: Sampling) -> tuple[float, int, float, float]:
    """Temperature, top-k, top-p and uniform, within the range of 32 bits."""
    return (
        sampling.temperature,
        min(sampling.top_k, _MOST_TOP_K),
        sampling.top_p,
        min(sampling.uniform, _LARGEST_UNIFORM),
    )
