"""The sizes that the paged kernels compute with. Pure: how much memory they take is known without a GPU."""

from __future__ import annotations

#: Tokens of the cache that a program reads at a time.
TILE = 64
#: Smaller matrices do not fit the tensor cores.
LEAST_MATRIX = 16
#: A part of a sequence that decodes has at least this many tokens, and a sequence at most this many parts.
_LEAST_PART = 256
_MOST_PARTS = 16


def padded(size: int) -> int:
    """The side of a matrix that holds ``size``: a power of two that the tensor cores take."""
    return max(LEAST_MATRIX, 1 << (size - 1).bit_length())


def softmax_scale(head_dim: int) -> float:
    """What scores are multiplied by. Exponents of 2 are cheaper: 1 / ln 2."""
    return float(head_dim**-0.5 * 1.4426950408889634)


def part_tokens(context: int) -> int:
    """Tokens of a part of a sequence: a multiple of a tile."""
    least = -(-context // _MOST_PARTS)
    return max(_LEAST_PART, -(-least // TILE) * TILE)


def part_count(context: int) -> int:
    return -(-context // part_tokens(context))
