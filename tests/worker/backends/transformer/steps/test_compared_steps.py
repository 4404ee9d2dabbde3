"""The comparison of steps on a GPU, on a CPU: right steps pass in every type, steps that read a wrong cache fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compared_steps import LIMITS, TOLERANCES, decoded, deviations, prompted
from generation_models import SampleModel, context_for
from isochrone.worker.backends.generative import Result, Row
from isochrone.worker.backends.transformer.backend import load

# For torch's word on CPUs without instructions for bfloat16.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")
CPU = "instance_group { kind: KIND_CPU }"
NAMES = ["llama3", "qwen2", "qwen3", "gpt2"]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", NAMES)
def test_right_steps_pass_in_every_type(sharp_model: SampleModel, name: str, dtype: str) -> None:
    directory = sharp_model(name)
    executable = load(context_for(directory, CPU, **LIMITS, dtype=dtype))
    found = [decoded(executable), prompted(executable, 96), prompted(executable, 7)]
    executable.close()
    for each in found:
        assert max(deviations(directory, each)) < TOLERANCES[dtype]


#: Changes a row, or the cache before it is read.
Fault = Callable[[Row, torch.Tensor], Row]


def shifted_blocks(row: Row, cache: torch.Tensor) -> Row:
    """Each the next one of its sequence."""
    return row._replace(blocks=[*row.blocks[1:], row.blocks[0]])


def other_blocks(row: Row, cache: torch.Tensor) -> Row:
    """Of another sequence."""
    return row._replace(blocks=[(block + 7) % 119 for block in row.blocks])


def zeroed_blocks(row: Row, cache: torch.Tensor) -> Row:
    with torch.inference_mode():
        cache[:, :, row.blocks] = 0
    return row


class Faulty:
    """Steps of an executable with a fault in every row that reads what earlier steps wrote and asks for a token."""

    def __init__(self, executable: Any, fault: Fault) -> None:
        self._executable = executable
        self._fault = fault
        self.limits = executable.limits

    def launch(self, rows: list[Row]) -> None:
        cache = self._executable._steps._cache
        self._executable.launch([self._fault(row, cache) if row.start and row.sampling else row for row in rows])

    def collect(self) -> list[Result]:
        results: list[Result] = self._executable.collect()
        return results


@pytest.mark.parametrize("fault", [shifted_blocks, other_blocks, zeroed_blocks])
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_steps_that_read_a_wrong_cache_fail(sharp_model: SampleModel, name: str, dtype: str, fault: Fault) -> None:
    directory = sharp_model(name)
    executable = load(context_for(directory, CPU, **LIMITS, dtype=dtype))
    faulty = Faulty(executable, fault)
    steps = decoded(faulty)
    prompts = [(tokens, chosen) for tokens, chosen in prompted(faulty, 7) if len(tokens) > 7]
    executable.close()
    for found in (steps, prompts):
        wrong = [each > TOLERANCES[dtype] for each in deviations(directory, found)]
        # One would do; most are seen, so a fault in few rows is seen, too.
        assert 2 * sum(wrong) > len(wrong)
