"""On a GPU: the paged kernels against the gathered attention, and steps by CUDA graphs against steps on the CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from generation_models import VOCABULARY, SampleModel, context_for
from isochrone.worker.backends.generative import Chosen, GenerationLimits, GenerativeExecutable, Row, Sampling
from isochrone.worker.backends.transformer.attention.attention import (
    PromptChunk,
    gathered_decode,
    prompt_attend,
    tiled_attend,
)
from isochrone.worker.backends.transformer.backend import load
from isochrone.worker.backends.transformer.steps.packing import Packer
from isochrone.worker.backends.transformer.steps.prompt_packing import PromptBatch, PromptLayouts, tile_tokens

GPU, CPU = "instance_group { kind: KIND_GPU }", "instance_group { kind: KIND_CPU }"
LIMITS = {"max_rows": "20", "kv_cache_tokens": "2048", "prefill_tokens": "64"}


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


def run(executable: GenerativeExecutable, sampling: Sampling) -> list[list[Chosen | None]]:
    """Prompts of 17 rows in two steps each, then three steps of one token: sizes that are padded."""
    chance = random.Random(3)
    blocks = [[7 * row + number for number in range(3)] for row in range(17)]
    tokens = [chance.choices(range(VOCABULARY), k=20) for _ in range(17)]
    steps = []
    for row in range(17):
        executable.launch([Row(tokens[row][:13], 0, blocks[row], None)])
        executable.collect()
        executable.launch([Row(tokens[row][13:17], 13, blocks[row], sampling)])
        steps.append(executable.collect())
    for position in (17, 18, 19):
        executable.launch(
            [Row(tokens[row][position : position + 1], position, blocks[row], sampling) for row in range(17)]
        )
        steps.append(executable.collect())
    return steps


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gpt2"])
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_steps_on_a_gpu_are_those_of_the_cpu(sample_model: SampleModel, name: str, graphs: str) -> None:
    found = []
    greedy = Sampling(temperature=0.0)
    for config, extra in ((CPU, {"dtype": "float32"}), (GPU, {"dtype": "bfloat16", "cuda_graphs": graphs})):
        executable = load(context_for(sample_model(name), config, **LIMITS, **extra))
        executable.warm_steps()
        found.append(run(executable, greedy))
        executable.close()
    exact = [chosen.log_probability for step in found[0] for chosen in step if chosen is not None]
    rough = [chosen.log_probability for step in found[1] for chosen in step if chosen is not None]
    assert rough == pytest.approx(exact, abs=0.3)


@pytest.mark.parametrize("sampling", [Sampling(0.8, 0, 1.0, 0.4), Sampling(0.8, 20, 0.9, 0.4)])
def test_graphs_choose_what_single_kernels_choose(sample_model: SampleModel, sampling: Sampling) -> None:
    found = []
    for graphs in ("true", "false"):
        parameters = {**LIMITS, "dtype": "bfloat16", "cuda_graphs": graphs}
        executable = load(context_for(sample_model("llama"), GPU, **parameters))
        executable.warm_steps()
        found.append(run(executable, sampling))
        executable.close()
    assert found[0] == found[1]


def run_prompts(executable: GenerativeExecutable, sampling: Sampling, chunk: int) -> dict[int, Chosen]:
    """Prompts of 2 to 90 tokens, several in a step and cut into chunks, beside a row that decodes."""
    chance = random.Random(5)
    lengths = [2, 90, 5, 31, 17, 64, 48, 3, 16]
    tokens = [chance.choices(range(VOCABULARY), k=length) for length in lengths]
    blocks = [[10 * row + number for number in range(6)] for row in range(len(lengths))]
    done, found = [0] * len(lengths), {}
    while done != lengths:
        rows, members, budget = [Row([7], 0, [100], sampling)], [-1], executable.limits.prefill_tokens
        for number, length in enumerate(lengths):
            count = min(length - done[number], chunk, budget)
            if count:
                budget -= count
                part = tokens[number][done[number] : done[number] + count]
                done[number] += count
                rows.append(
                    Row(part, done[number] - count, blocks[number], sampling if done[number] == length else None)
                )
                members.append(number)
        executable.launch(rows)
        for number, row, chosen in zip(members, rows, executable.collect(), strict=True):
            assert (chosen is None) == (row.sampling is None)
            if chosen is not None:
                found[number] = chosen
    return found


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gpt2"])
def test_prompts_by_graphs_whole_and_in_chunks_are_those_of_the_cpu(sample_model: SampleModel, name: str) -> None:
    greedy = Sampling(temperature=0.0)
    found = []
    for config, extra, chunks in (
        (CPU, {"dtype": "float32"}, [96]),
        (GPU, {"dtype": "bfloat16", "cuda_graphs": "true"}, [96, 33, 7]),
        (GPU, {"dtype": "bfloat16", "cuda_graphs": "false"}, [96]),
        (GPU, {"dtype": "bfloat16", "attention": "gather"}, [96]),
    ):
        parameters = {**LIMITS, "prefill_tokens": "150", **extra}
        executable = load(context_for(sample_model(name), config, **parameters))
        executable.warm_steps()
        found += [run_prompts(executable, greedy, chunk) for chunk in chunks]
        executable.close()
    exact = {number: chosen.log_probability for number, chosen in found[0].items()}
    for rough in found[1:]:
        assert {number: chosen.log_probability for number, chosen in rough.items()} == pytest.approx(exact, abs=0.3)


def test_prompts_by_graphs_choose_what_single_kernels_choose(sample_model: SampleModel) -> None:
    found = []
    for graphs in ("true", "false"):
        parameters = {**LIMITS, "prefill_tokens": "150", "dtype": "bfloat16", "cuda_graphs": graphs}
        executable = load(context_for(sample_model("llama"), GPU, **parameters))
        executable.warm_steps()
        found.append([run_prompts(executable, Sampling(0.8, 20, 0.9, 0.4), chunk) for chunk in (96, 20)])
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
