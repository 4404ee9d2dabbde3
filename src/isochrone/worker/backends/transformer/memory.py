"""How much memory a model takes, and how many tokens its cache holds: refused with figures before memory runs out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.worker.backends.transformer.attention.kernel_sizes import part_count
from isochrone.worker.backends.transformer.checkpoint.shape import DecoderShape, parameter_count

#: Without ``kv_cache_tokens`` on a CPU: room for this many sequences of full length, …
_CPU_SEQUENCES = 16
#: … but at most this share of the memory that weights leave.
_CPU_SHARE = 0.25
_GIBIBYTE = 2**30


@dataclass(frozen=True, slots=True)
class Request:
    """What the configuration asks for."""

    where: str
    context_tokens: int
    block_tokens: int
    rows: int
    prefill_tokens: int
    #: None: by default.
    cache_tokens: int | None
    #: Of the memory that weights leave on a GPU.
    cache_fraction: float


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one instance, and the blocks of its cache."""

    weights: int
    cache: int
    #: What a step needs beside them, at most.
    workspace: int
    blocks: int


def plan_memory(
    shape: DecoderShape, item_size: int, free: int, is_cuda: bool, request: Request, *, is_paged: bool = False
) -> MemoryPlan:
    """``free`` bytes are there; ``item_size`` are the bytes of a number; ``is_paged``: attention reads the cache in
    place."""
    weights = parameter_count(shape) * item_size
    workspace = workspace_bytes(shape, item_size, request, is_paged=is_paged)
    block = shape.kv_values_per_token * item_size * request.block_tokens
    needed = -(-request.context_tokens // request.block_tokens)
    left = free - weights - workspace
    if request.cache_tokens is not None:
        blocks = request.cache_tokens // request.block_tokens
        if blocks < needed:
            expected = f"at least {needed * request.block_tokens}: one sequence of max_context {request.context_tokens}"
            raise ConfigError(request.where, 'parameters["kv_cache_tokens"]', expected, str(request.cache_tokens))
    elif is_cuda:
        blocks = int(max(0, left) * request.cache_fraction) // block - 1
    else:
        blocks = min(_CPU_SEQUENCES * needed, int(max(0, left) * _CPU_SHARE) // block - 1)
    cache = (max(blocks, needed) + 1) * block
    if blocks < needed or cache > left:
        figures = f"weights {_size(weights)}, cache {_size(cache)}, steps {_size(workspace)}, free {_size(free)}"
        expected = "a model that fits (max_context, max_rows, prefill_tokens, kv_cache_tokens, dtype), or more memory"
        raise ConfigError(request.where, "memory", expected, figures)
    return MemoryPlan(weights, cache, workspace, blocks)


def workspace_bytes(shape: DecoderShape, item_size: int, request: Request, *, is_paged: bool) -> int:
    """What the steps hold at most: states of a chunk, what attention needs, logits and what samples them."""
    widest = max(shape.width * 4 + (shape.heads + 2 * shape.kv_heads) * shape.head_dim * 3, shape.mlp_width * 4)
    states = request.prefill_tokens * widest * item_size
    attention = _paged_bytes(shape, request) if is_paged else _gathered_bytes(shape, item_size, request)
    # Float32 logits, and about five arrays of eight bytes while top-k and top-p are applied.
    logits = request.rows * shape.vocabulary * (4 + 5 * 8)
    return states + attention + logits


def _paged_bytes(shape: DecoderShape, request: Request) -> int:
    """Float32 results of the parts of rows that decode, each with its weight. Prompts need nothing."""
    return request.rows * shape.heads * part_count(request.context_tokens) * (shape.head_dim + 1) * 4


def _gathered_bytes(shape: DecoderShape, item_size: int, request: Request) -> int:
    """Copies of keys and values, in the cache's order and in that of heads, and float32 scores with their mask: of one
    chunk of a prompt, or of all rows that decode, whose tables are as wide as that of the longest."""
    copied = 4 * request.context_tokens * shape.kv_heads * shape.head_dim * item_size
    scored = shape.heads * request.context_tokens * 4
    mask = request.context_tokens * 4 * (shape.heads // shape.kv_heads)
    return max(copied + request.prefill_tokens * (scored + mask), request.rows * (copied + scored + mask))


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: of the machine, or of its control group if that is less."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    free = kilobytes * 1024
    group = root / "sys/fs/cgroup"
    try:
        most, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        return free if most == "max" else max(0, min(free, int(most) - used))
    except (OSError, ValueError):
        return free


def _size(count: int) -> str:
    return f"{count / _GIBIBYTE:.2f} GiB"
