"""On a GPU: the paged kernels against the gathered attention, and steps against an independent computation."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from compared_steps import LIMITS, TOLERANCES, decoded, deviations, prompted
from generation_models import SampleModel, context_for
from isochrone.worker.backends.generative import GenerationLimits, Row, Sampling
from isochrone.worker.backends.transformer.attention.attention import (
    PromptChunk,
    gathered_decode,
    prompt_attend,
    tiled_attend,
)
from isochrone.worker.backends.transformer.backend import load
from isochrone.worker.backends.transformer.steps.packing import Packer
from isochrone.worker.backends.transformer.steps.prompt_packing import PromptBatch, PromptLayouts, tile_tokens

GPU = "instance_group { kind: KIND_GPU }"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_tokens", "width"),
    [(4, 2, 16, 4, 24), (8, 8, 64, 16, 20), (6, 2, 80, 16, 40), (32, 8, 128, 16, 300), (3, 1, 48, 8, 150)],
)
def test_the_kernel_attends_as_the_gathered_attention(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, block_tokens: int, width: int
) -> None:
    from isochrone.worker.backends.transformer.attention.paged_kernel import paged_decode

    generator = torch.Generator("cuda").manual_seed(1)
    rows, context = 5, width * block_tokens
    sizes = (rows * width + 1, block_tokens, kv_heads, head_dim)
    keys, values = (torch.randn(sizes, generator=generator, device="cuda").to(dtype) for _ in range(2))
    # As steps pass them: columns of records, and heads of a wider matrix.
    records = torch.zeros((rows, 8 + width), dtype=torch.int32, device="cuda")
    records[:, 8:] = torch.randperm(rows * width, generator=generator, device="cuda").view(rows, width)
    records[:, 3] = torch.tensor([1, 7, context, min(257, context), context // 2 + 1])
    queries = torch.randn((rows, heads + 2, head_dim), generator=generator, device="cuda").to(dtype)[:, :heads]
    tables, lengths = records[:, 8:], records[:, 3]
    exact = gathered_decode(queries.float(), keys.float(), values.float(), tables, lengths)
    found = paged_decode(queries, keys, values, tables, lengths)
    torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=2e-2)
    # Rows do not depend on the others.
    alone = paged_decode(queries[1:2], keys, values, tables[1:2], lengths[1:2])
    assert torch.equal(alone[0], found[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_tokens"),
    [(4, 2, 16, 4), (8, 8, 64, 16), (14, 2, 80, 16), (32, 8, 128, 16), (3, 1, 48, 1), (8, 1, 256, 32)],
)
def test_the_kernel_of_prompts_attends_as_the_gathered_attention(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, block_tokens: int
) -> None:
    from isochrone.worker.backends.transformer.attention.paged_prompt_kernel import paged_prompt

    generator = torch.Generator("cuda").manual_seed(2)
    chance = random.Random(2)
    # Whole prompts, a chunk after many tokens, one after few; the rest of 512 tokens only fills up.
    spans = [(0, 2), (900, 37), (3, 130), (0, 200), (64, 64)]
    width = -(-1024 // block_tokens)
    limits = GenerationLimits(1024, block_tokens, len(spans) * width, 8, 512)
    blocks = chance.sample(range(limits.blocks), limits.blocks)
    rows = [
        Row([1] * count, start, blocks[number * width : (number + 1) * width], None)
        for number, (start, count) in enumerate(spans)
    ]

    def attended(given: list[Row], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """By the kernel, and exactly, of rows whose tokens are those from ``first`` on."""
        packer = Packer(limits, 1000)
        layouts = PromptLayouts(packer, tile_tokens(heads // kv_heads))
        data = np.full(layouts.capacity, 2**30, np.int32)  # what is not written must not be read
        layout = layouts[PromptBatch(layouts, data).pack(given).bucket]
        count = sum(len(row.tokens) for row in given)
        numbers = torch.from_numpy(data).cuda()
        slots = numbers[layout.tokens + 2 * layout.bucket :][: layout.bucket].long()
        tiles = numbers[layout.tiles :][: 4 * layout.tile_count].view(-1, 4)
        tables = numbers[layout.tables :][: limits.rows * width].view(limits.rows, width)
        turned = torch.zeros((layout.bucket, heads + 2 * kv_heads, head_dim), dtype=dtype, device="cuda")
        turned[:count] = states[first : first + count]
        split = turned.split((heads, kv_heads, kv_heads), 1)
        attend = tiled_attend(cache.clone(), slots, tables, tiles, layouts.tile_tokens, paged_prompt)
        found = attend(0, *split)
        assert not found[count:].any()
        chunks, begin = [], 0
        for row in given:
            table = torch.tensor(packer.table(row), device="cuda")
            chunks.append(PromptChunk(begin, begin + len(row.tokens), row.start, table))
            begin += len(row.tokens)
        exact = prompt_attend(cache.float(), slots[:count], chunks)(0, *(each[:count].float() for each in split))
        return found[:count], exact

    sizes = (1, 2, limits.blocks + 1, block_tokens, kv_heads, head_dim)
    cache = torch.randn(sizes, generator=generator, device="cuda").to(dtype)
    states = torch.randn((512, heads + 2 * kv_heads, head_dim), generator=generator, device="cuda").to(dtype)
    found, exact = attended(rows, 0)
    torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=2e-2)
    # Prompts do not depend on the others, nor on the bucket.
    alone, _ = attended(rows[2:3], 39)
    assert torch.equal(alone, found[39:169])


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_steps_on_a_gpu_are_those_of_the_reference(
    sharp_model: SampleModel, name: str, dtype: str, graphs: str
) -> None:
    directory = sharp_model(name)
    executable = load(context_for(directory, GPU, **LIMITS, dtype=dtype, cuda_graphs=graphs))
    executable.warm_steps()
    found = decoded(executable)
    executable.close()
    assert max(deviations(directory, found)) < TOLERANCES[dtype]


@pytest.mark.parametrize("sampling", [Sampling(0.8, 0, 1.0, 0.4), Sampling(0.8, 20, 0.9, 0.4)])
def test_graphs_choose_what_single_kernels_choose(sample_model: SampleModel, sampling: Sampling) -> None:
    found = []
    for graphs in ("true", "false"):
        parameters = {**LIMITS, "dtype": "bfloat16", "cuda_graphs": graphs}
        executable = load(context_for(sample_model("llama"), GPU, **parameters))
        executable.warm_steps()
        found.append(decoded(executable, sampling))
        executable.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("parameters", "chunks"),
    [({"cuda_graphs": "true"}, [96, 33, 7]), ({"cuda_graphs": "false"}, [96]), ({"attention": "gather"}, [96])],
)
def test_prompts_on_a_gpu_whole_and_in_chunks_are_those_of_the_reference(
    sharp_model: SampleModel, name: str, dtype: str, parameters: dict[str, str], chunks: list[int]
) -> None:
    directory = sharp_model(name)
    executable = load(context_for(directory, GPU, **LIMITS, dtype=dtype, **parameters))
    executable.warm_steps()
    found = [prompted(executable, chunk) for chunk in chunks]
    executable.close()
    for each in found:
        assert max(deviations(directory, each)) < TOLERANCES[dtype]


def test_prompts_by_graphs_choose_what_single_kernels_choose(sample_model: SampleModel) -> None:
    found = []
    for graphs in ("true", "false"):
        executable = load(context_for(sample_model("llama"), GPU, **LIMITS, dtype="bfloat16", cuda_graphs=graphs))
        executable.warm_steps()
        found.append([prompted(executable, chunk, Sampling(0.8, 20, 0.9, 0.4)) for chunk in (96, 20)])
        executable.close()
    assert found[0] == found[1]


def test_close_gives_the_memory_back(sample_model: SampleModel) -> None:
    free = []
    for _ in range(4):
        executable = load(context_for(sample_model("llama"), GPU, **LIMITS, dtype="bfloat16"))
        executable.warm_steps()
        executable.close()
        free.append(torch.cuda.mem_get_info()[0])
    # The first load also makes the context and the libraries' own memory.
    assert free[1] == free[2] == free[3]
