"""Attention of decode rows on a GPU, straight from the paged cache: two kernels in Triton's language.

The first goes through a part of one sequence's tokens for the heads of queries that share a head of keys; the second
merges the parts. Parts have a fixed number of tokens, so a row's result does not depend on the rows beside it. Parts
beyond a row's length end at once. Only imported for a GPU; ``TRITON_INTERPRET=1`` runs it on a CPU, slowly.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from isochrone.worker.backends.transformer.attention.kernel_sizes import (
    TILE,
    padded,
    part_count,
    part_tokens,
    softmax_scale,
)


def paged_decode(queries: Any, keys: Any, values: Any, tables: Any, lengths: Any) -> Any:
    """``attention.DecodeAttention``. Values of ``tables`` beyond a row's length are not read."""
    rows, heads, head_dim = queries.shape
    _, block_tokens, kv_heads, _ = keys.shape
    group = heads // kv_heads
    context = tables.shape[1] * block_tokens
    part, parts = part_tokens(context), part_count(context)
    device = queries.device
    partial = torch.empty((rows, heads, parts, head_dim), dtype=torch.float32, device=device)
    weights = torch.empty((rows, heads, parts), dtype=torch.float32, device=device)
    attended = torch.empty((rows, heads, head_dim), dtype=queries.dtype, device=device)
    padded_dim = padded(head_dim)
    _parts[(rows, kv_heads, parts)](
        queries,
        keys,
        values,
        tables,
        lengths,
        partial,
        weights,
        softmax_scale(head_dim),
        queries.stride(0),
        queries.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        tables.stride(0),
        lengths.stride(0),
        GROUP=group,
        PADDED_GROUP=padded(group),
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        BLOCK_TOKENS=block_tokens,
        PART=part,
        PARTS=parts,
        TILE=TILE,
        num_warps=4,
        num_stages=2,
    )
    _merge[(rows, heads)](
        partial,
        weights,
        lengths,
        attended,
        lengths.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        PART=part,
        PARTS=parts,
        PADDED_PARTS=triton.next_power_of_2(parts),
        num_warps=2,
    )
    return attended


@triton.jit  # type: ignore[untyped-decorator]
def _parts(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    tables,
    lengths,
    partial,
    weights,
    scale,
    query_row_stride,
    query_head_stride,
    block_stride,
    token_stride,
    kv_head_stride,
    table_stride,
    length_stride,
    GROUP: tl.constexpr,  # noqa: N803 - constants of the compiled kernel, as Triton writes them
    PADDED_GROUP: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    PADDED_DIM: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(lengths + row * length_stride)
    begin = part * PART
    if begin >= length:
        return
    end = tl.minimum(begin + PART, length)

    members = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    is_head = members < GROUP
    is_dim = dims < HEAD_DIM
    heads = kv_head * GROUP + members
    query_offsets = row.to(tl.int64) * query_row_stride + heads[:, None] * query_head_stride + dims[None, :]
    query = tl.load(queries + query_offsets, mask=is_head[:, None] & is_dim[None, :], other=0.0)

    largest = tl.full((PADDED_GROUP,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((PADDED_GROUP,), dtype=tl.float32)
    attended = tl.zeros((PADDED_GROUP, PADDED_DIM), dtype=tl.float32)
    for tile in range(begin, end, TILE):
        places = tile + tl.arange(0, TILE)
        is_token = places < end
        blocks = tl.load(tables + row * table_stride + places // BLOCK_TOKENS, mask=is_token, other=0)
        offsets = blocks.to(tl.int64) * block_stride + (places % BLOCK_TOKENS) * token_stride + kv_head * kv_head_stride
        key = tl.load(keys + offsets[None, :] + dims[:, None], mask=is_token[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(query, key) * scale
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        correction = tl.exp2(largest - new_largest)
        probabilities = tl.exp2(scores - new_largest[:, None])
        total = total * correction + tl.sum(probabilities, 1)
        value = tl.load(values + offsets[:, None] + dims[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0)
        attended = attended * correction[:, None] + tl.dot(probabilities.to(value.dtype), value)
        largest = new_largest

    places_out = (row * HEADS + heads).to(tl.int64) * PARTS + part
    tl.store(
        partial + places_out[:, None] * HEAD_DIM + dims[None, :],
        attended / total[:, None],
        mask=is_head[:, None] & is_dim[None, :],
    )
    tl.store(weights + places_out, largest + tl.log2(total), mask=is_head)


@triton.jit  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    partial,
    weights,
    lengths,
    attended,
    length_stride,
    HEADS: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    PADDED_DIM: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    PADDED_PARTS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(lengths + row * length_stride)
    parts = tl.arange(0, PADDED_PARTS)
    dims = tl.arange(0, PADDED_DIM)
    is_part = (parts < PARTS) & (parts * PART < length)
    is_dim = dims < HEAD_DIM
    place = (row * HEADS + head).to(tl.int64)
    weight = tl.load(weights + place * PARTS + parts, mask=is_part, other=float("-inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    share = share / tl.sum(share, 0)
    offsets = (place * PARTS + parts)[:, None] * HEAD_DIM + dims[None, :]
    values = tl.load(partial + offsets, mask=is_part[:, None] & is_dim[None, :], other=0.0)
    merged = tl.sum(values * share[:, None], 0)
    tl.store(attended + place * HEAD_DIM + dims, merged.to(attended.dtype.element_ty), mask=is_dim)
