"""On a GPU: the paged kernel against the gathered attention, and steps by CUDA graphs against steps on the CPU."""

from __future__ import annotations

import random

import pytest
import torch

from generation_models import VOCABULARY, SampleModel, context_for
from isochrone.worker.backends.generative import Chosen, GenerativeExecutable, Row, Sampling
from isochrone.worker.backends.transformer.attention import gathered_decode
from isochrone.worker.backends.transformer.backend import load

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
    from isochrone.worker.backends.transformer.paged_kernel import paged_decode

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


def test_close_gives_the_memory_back(sample_model: SampleModel) -> None:
    free = []
    for _ in range(4):
        executable = load(context_for(sample_model("llama"), GPU, **LIMITS, dtype="bfloat16"))
        executable.warm_steps()
        executable.close()
        free.append(torch.cuda.mem_get_info()[0])
    # The first load also makes the context and the libraries' own memory.
    assert free[1] == free[2] == free[3]
