"""Attention over a paged cache: a step's keys and values are written to their slots, then each query reads the blocks
of its sequence.

The cache is one tensor [layers, 2, blocks, block_tokens, kv_heads, head_dim]; a slot is a place for one token, numbered
over all blocks. The last block is scratch: rows that only fill up a batch write there. ``gathered_decode`` and
``paged_decode`` of ``paged_kernel`` have one signature; the first copies the rows' blocks together and runs anywhere.
Prompts are computed chunk by chunk anywhere, or all at once by ``paged_prompt_kernel``.

Heads of queries that share a head of keys count as queries of one sequence: so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

#: (queries [rows, heads, head_dim], keys [blocks, block_tokens, kv_heads, head_dim], values, tables [rows, width],
#: lengths [rows]) → [rows, heads, head_dim]. ``lengths`` count the token that is computed.
DecodeAttention = Callable[[Any, Any, Any, Any, Any], Any]
#: (queries [tokens, heads, head_dim], keys as above, values, tables [rows, width], tiles [tiles, 4] as
#: ``prompt_packing`` writes them, most tokens of a tile) → [tokens, heads, head_dim]. All tokens are in tiles.
PromptAttention = Callable[[Any, Any, Any, Any, Any, int], Any]


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Where the tokens of one chunk are in a flat list, and what they can see."""

    #: The chunk is ``tokens[begin:end]``.
    begin: int
    end: int
    #: The position of its first token.
    start: int
    #: The sequence's blocks [blocks], as far as the chunk's last token.
    table: Any


def new_cache(layers: int, blocks: int, block_tokens: int, kv_heads: int, head_dim: int, like: Any) -> Any:
    """An empty cache of ``blocks`` and the scratch block. Zeros: what is masked must still be numbers."""
    sizes = (layers, 2, blocks + 1, block_tokens, kv_heads, head_dim)
    return torch.zeros(sizes, dtype=like.dtype, device=like.device)


def write(cache: Any, layer: int, slots: Any, keys: Any, values: Any) -> None:
    held = cache[layer].flatten(1, 2)
    if cache.dtype == torch.float16:
        # An overflow must stay with its sequence: later ones read the rest of a reused block, masked, and 0 x inf is
        # not 0. The other types do not overflow.
        keys, values = torch.nan_to_num(keys), torch.nan_to_num(values)
    held[0].index_copy_(0, slots, keys)
    held[1].index_copy_(0, slots, values)


def decode_attend(cache: Any, slots: Any, tables: Any, lengths: Any, decode: DecodeAttention) -> Callable[..., Any]:
    """The attention of a batch of rows with one token each."""

    def attend(layer: int, queries: Any, keys: Any, values: Any) -> Any:
        write(cache, layer, slots, keys, values)
        return decode(queries, cache[layer, 0], cache[layer, 1], tables, lengths)

    return attend


def gathered_decode(queries: Any, keys: Any, values: Any, tables: Any, lengths: Any) -> Any:
    rows, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    visible = torch.arange(tables.shape[1] * keys.shape[1], device=queries.device) < lengths.unsqueeze(1)
    # [rows, kv_heads, context, head_dim]
    keys, values = (_seen(held[tables].flatten(1, 2), visible).transpose(1, 2) for held in (keys, values))
    grouped = queries.view(rows, kv_heads, heads // kv_heads, head_dim)
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible[:, None, None, :])
    return attended.reshape(rows, heads, head_dim)


def _seen(gathered: Any, visible: Any) -> Any:
    """Zeros where another sequence may have left what is not a number: masked scores do not hide it, since 0 x NaN is
    not 0. ``gathered`` is a copy: [rows, context, ...]."""
    return gathered.masked_fill_(~visible[:, :, None, None], 0)


def prompt_attend(cache: Any, slots: Any, chunks: list[PromptChunk]) -> Callable[..., Any]:
    """The attention of chunks of prompts, each by itself: a chunk's result does not depend on the others."""
    masks: dict[int, Any] = {}

    def attend(layer: int, queries: Any, keys: Any, values: Any) -> Any:
        write(cache, layer, slots, keys, values)
        groups = queries.shape[1] // keys.shape[1]
        attended = []
        for number, chunk in enumerate(chunks):
            if number not in masks:
                masks[number] = _causal_mask(chunk, groups, cache.shape[3], queries.device)
            end = chunk.start + chunk.end - chunk.begin
            attended.append(_chunk(queries[chunk.begin : chunk.end], cache[layer], chunk.table, end, masks[number]))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    return attend


def tiled_attend(
    cache: Any, slots: Any, tables: Any, tiles: Any, tile_tokens: int, prompt: PromptAttention
) -> Callable[..., Any]:
    """The attention of all prompts of a step at once."""

    def attend(layer: int, queries: Any, keys: Any, values: Any) -> Any:
        write(cache, layer, slots, keys, values)
        return prompt(queries, cache[layer, 0], cache[layer, 1], tables, tiles, tile_tokens)

    return attend


def _chunk(queries: Any, held: Any, table: Any, end: int, mask: Any) -> Any:
    """``end``: the position behind the chunk's last token."""
    tokens, heads, head_dim = queries.shape
    kv_heads = held.shape[3]
    # [2, context, kv_heads, head_dim]: a copy. What others have left behind the chunk may not be numbers.
    seen = held[:, table].flatten(1, 2)
    seen[:, end:] = 0
    # [1, kv_heads, context, head_dim]
    keys, values = (each.transpose(0, 1).unsqueeze(0) for each in seen)
    # [1, kv_heads, tokens x group, head_dim]
    grouped = queries.view(tokens, kv_heads, heads // kv_heads, head_dim).transpose(0, 1).flatten(1, 2).unsqueeze(0)
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return attended.view(kv_heads, tokens, heads // kv_heads, head_dim).transpose(0, 1).reshape(tokens, heads, head_dim)


def _causal_mask(chunk: PromptChunk, groups: int, block_tokens: int, device: Any) -> Any:
    """Which places of the table a query sees: [tokens x group, context]."""
    places = torch.arange(chunk.table.shape[0] * block_tokens, device=device)
    positions = torch.arange(chunk.start, chunk.start + chunk.end - chunk.begin, device=device)
    return places <= positions.repeat_interleave(groups).unsqueeze(1)
