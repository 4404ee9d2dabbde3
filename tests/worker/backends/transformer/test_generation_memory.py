"""How many blocks a cache gets, and models that do not fit: refused with figures before memory is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from generation_models import CONFIGS
from isochrone.errors import ConfigError
from isochrone.worker.backends.transformer.attention.attention import PromptChunk, gathered_decode, prompt_attend
from isochrone.worker.backends.transformer.checkpoint.fields import Fields
from isochrone.worker.backends.transformer.checkpoint.shape import parameter_count, shape_of
from isochrone.worker.backends.transformer.memory import Request, free_memory, plan_memory, workspace_bytes

SHAPE = shape_of(Fields("config.json", CONFIGS["llama"]))
REQUEST = Request("m/config.pbtxt", 96, 16, 4, 64, None, 0.5)
#: 2 layers x keys and values x 2 heads x 8 numbers x 4 bytes x 16 tokens
BLOCK_BYTES = 2 * 2 * 2 * 8 * 4 * 16
TOKENS = 'parameters["kv_cache_tokens"]'


def test_a_cpu_holds_sixteen_sequences_by_default() -> None:
    plan = plan_memory(SHAPE, 4, 2**34, False, REQUEST)
    assert plan.blocks == 16 * 6
    assert plan.cache == (plan.blocks + 1) * BLOCK_BYTES
    assert plan.weights == parameter_count(SHAPE) * 4


def test_a_cpu_takes_at_most_a_quarter_of_what_is_left() -> None:
    base = parameter_count(SHAPE) * 4 + workspace_bytes(SHAPE, 4, REQUEST, is_paged=False)
    plan = plan_memory(SHAPE, 4, base + 40 * BLOCK_BYTES, False, REQUEST)
    assert plan.blocks == 9


def test_a_gpu_takes_a_share_of_what_weights_leave() -> None:
    base = parameter_count(SHAPE) * 2 + workspace_bytes(SHAPE, 2, REQUEST, is_paged=True)
    plan = plan_memory(
        SHAPE, 2, base + 1000 * BLOCK_BYTES // 2, True, replace(REQUEST, cache_fraction=0.8), is_paged=True
    )
    assert plan.blocks == 799


def test_stated_tokens() -> None:
    assert plan_memory(SHAPE, 4, 2**34, False, replace(REQUEST, cache_tokens=1000)).blocks == 62
    with pytest.raises(ConfigError) as caught:
        plan_memory(SHAPE, 4, 2**34, False, replace(REQUEST, cache_tokens=95))
    error = caught.value
    assert (error.key, error.expected) == (TOKENS, "at least 96: one sequence of max_context 96")


def test_a_refusal_has_the_figures() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(SHAPE, 4, 2**30, False, replace(REQUEST, cache_tokens=2**24))
    assert caught.value.key == "memory"
    assert caught.value.given == "weights 0.00 GiB, cache 4.00 GiB, steps 0.00 GiB, free 1.00 GiB"


@given(
    free=st.integers(0, 2**28),
    is_cuda=st.booleans(),
    tokens=st.none() | st.integers(1, 2**16),
    fraction=st.floats(0.01, 1),
)
def test_a_plan_fits_or_is_refused(free: int, is_cuda: bool, tokens: int | None, fraction: float) -> None:
    request = replace(REQUEST, cache_tokens=tokens, cache_fraction=fraction)
    try:
        plan = plan_memory(SHAPE, 4, free, is_cuda, request)
    except ConfigError:
        return
    assert plan.weights + plan.workspace + plan.cache <= free
    assert plan.blocks * 16 >= 96
    assert plan.cache == (plan.blocks + 1) * BLOCK_BYTES


def test_paged_kernels_gather_nothing() -> None:
    """A long context costs the paged path hardly anything, and the gathering one more than its cache of a row."""
    short, long = replace(REQUEST, context_tokens=4096), replace(REQUEST, context_tokens=65536)
    paged, gathered = (
        [workspace_bytes(SHAPE, 2, request, is_paged=is_paged) for request in (short, long)]
        for is_paged in (True, False)
    )
    assert paged[0] < gathered[0]
    # At most 16 parts of each row, with a weight and a result in float32.
    assert paged[0] == paged[1]
    assert paged[0] - workspace_bytes(SHAPE, 2, replace(short, context_tokens=256), is_paged=True) == (
        REQUEST.rows * SHAPE.heads * 15 * (SHAPE.head_dim + 1) * 4
    )
    # All rows are gathered, keys and values, as wide as the longest.
    one_row = 2 * 65536 * SHAPE.kv_heads * SHAPE.head_dim * 2
    assert gathered[1] > REQUEST.rows * one_row


@pytest.mark.parametrize("attention", ["prompt", "decode"])
def test_the_estimate_covers_what_gathering_allocates(attention: str) -> None:
    """torch's own count of the tensors that attention makes, in the largest step."""
    request = replace(REQUEST, context_tokens=2048, rows=8, prefill_tokens=32)
    heads, kv_heads, head_dim, blocks = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, 2048 // 16
    cache = torch.zeros(1, 2, blocks + 1, 16, kv_heads, head_dim)
    tables = torch.arange(blocks, dtype=torch.int32)
    with torch.inference_mode(), torch.profiler.profile(profile_memory=True) as profile:
        if attention == "decode":
            lengths = torch.full((8,), 2048, dtype=torch.int32)
            gathered_decode(torch.zeros(8, heads, head_dim), cache[0, 0], cache[0, 1], tables.expand(8, -1), lengths)
        else:
            chunk, keys = PromptChunk(0, 32, 2016, tables), torch.zeros(32, kv_heads, head_dim)
            prompt_attend(cache, torch.arange(32), [chunk])(0, torch.zeros(32, heads, head_dim), keys, keys)
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert 0 < most <= workspace_bytes(SHAPE, 4, request, is_paged=False)


def test_free_memory_is_that_of_the_machine_or_of_the_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    assert free_memory(tmp_path) == 1_024_000
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("200000\n")
    for most, expected in (("max", 1_024_000), ("300000", 100_000), ("100000", 0), ("9999999999", 1_024_000)):
        (group / "memory.max").write_text(f"{most}\n")
        assert free_memory(tmp_path) == expected
