"""Attention of prompts on a GPU, straight from the paged cache: one kernel in Triton's language, one launch for all
prompts of a step.

A program goes through the tokens that one tile of a prompt sees, for the heads of queries that share a head of keys.
Tiles are given by a tensor, so a captured launch serves any prompts: programs without work end at once. A token's
result does not depend on the prompts beside its own. Only imported for a GPU; ``TRITON_INTERPRET=1`` runs it on a CPU,
slowly.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from isochrone.worker.backends.transformer.attention.kernel_sizes import TILE, padded, softmax_scale

#: Tokens of the cache that a program reads at a time: wide heads would not fit the shared memory of smaller GPUs.
_TILE_OF_WIDE_HEADS = 32
_WIDE_HEAD = 128


def paged_prompt(queries: Any, keys: Any, values: Any, tables: Any, tiles: Any, tile_tokens: int) -> Any:
    """``attention.PromptAttention``. Values of ``tables`` beyond what a tile sees are not read."""
    tokens, heads, head_dim = queries.shape
    _, block_tokens, kv_heads, _ = keys.shape
    group = heads // kv_heads
    attended = torch.empty((tokens, heads, head_dim), dtype=queries.dtype, device=queries.device)
    padded_dim = padded(head_dim)
    _attend[(tiles.shape[0], kv_heads)](
        queries,
        keys,
        values,
        tables,
        tiles,
        attended,
        softmax_scale(head_dim),
        queries.stride(0),
        queries.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        tables.stride(0),
        GROUP=group,
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        BLOCK_TOKENS=block_tokens,
        QUERIES=padded(tile_tokens * group),
        TILE=TILE if padded_dim <= _WIDE_HEAD else _TILE_OF_WIDE_HEADS,
        num_warps=4,
        num_stages=2,
    )
    return attended


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    tables,
    tiles,
    attended,
    scale,
    query_token_stride,
    query_head_stride,
    block_stride,
    token_stride,
    kv_head_stride,
    table_stride,
    GROUP: tl.constexpr,  # noqa: N803 - constants of the compiled kernel, as Triton writes them
    HEADS: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    PADDED_DIM: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    QUERIES: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    tile = tiles + tl.program_id(0) * 4
    kv_head = tl.program_id(1)
    count = tl.load(tile + 3)
    if count == 0:
        return
    row = tl.load(tile)
    first = tl.load(tile + 1)
    position = tl.load(tile + 2)
    # The last token of the tile sees the most. Tiles that only fill up end at 0 and see nothing.
    end = position + count

    # Queries are ordered by token, then by head of the group.
    members = tl.arange(0, QUERIES)
    dims = tl.arange(0, PADDED_DIM)
    tokens = members // GROUP
    heads = kv_head * GROUP + members % GROUP
    is_wanted = (tokens < count)[:, None] & (dims < HEAD_DIM)[None, :]
    is_dim = dims < HEAD_DIM
    positions = position + tokens
    places_in = (first + tokens).to(tl.int64)
    query_offsets = places_in[:, None] * query_token_stride + heads[:, None] * query_head_stride + dims[None, :]
    query = tl.load(queries + query_offsets, mask=is_wanted, other=0.0)

    largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    result = tl.zeros((QUERIES, PADDED_DIM), dtype=tl.float32)
    for begin in range(0, end, TILE):
        places = begin + tl.arange(0, TILE)
        is_token = places < end
        blocks = tl.load(tables + row * table_stride + places // BLOCK_TOKENS, mask=is_token, other=0)
        offsets = blocks.to(tl.int64) * block_stride + (places % BLOCK_TOKENS) * token_stride + kv_head * kv_head_stride
        key = tl.load(keys + offsets[None, :] + dims[:, None], mask=is_token[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(query, key) * scale
        # Every query sees the first place, so that the largest score is a number from the first turn on.
        scores = tl.where(places[None, :] <= positions[:, None], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        correction = tl.exp2(largest - new_largest)
        probabilities = tl.exp2(scores - new_largest[:, None])
        total = total * correction + tl.sum(probabilities, 1)
        value = tl.load(values + offsets[:, None] + dims[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0)
        result = result * correction[:, None] + tl.dot(probabilities.to(value.dtype), value)
        largest = new_largest

    # Tokens that only fill up get zeros: what follows from them must be numbers.
    result = result / tl.where(total > 0, total, 1.0)[:, None]
    outputs = (places_in * HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(attended + outputs, result.to(attended.dtype.element_ty), mask=is_wanted)
