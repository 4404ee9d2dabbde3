"""Blocks of answers: lent while an array uses them, and one more that is always copied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from isochrone.worker.backends.processes.response_blocks import BLOCKS_LENT, ResponseBlocks

LARGE = 1 << 20


@pytest.fixture
def responses() -> Iterator[ResponseBlocks]:
    made = ResponseBlocks()
    yield made
    for block in made.blocks:
        block.close()


def _lent(responses: ResponseBlocks, number: int) -> np.ndarray:
    block = responses.blocks[number]
    places, size = block.write({"y": np.arange(4)})
    return block.read(places, size, copy=False)["y"]


def test_a_block_is_lent_until_its_array_is_gone(responses: ResponseBlocks) -> None:
    held = [_lent(responses, number) for number in range(BLOCKS_LENT)]
    assert responses.free() == BLOCKS_LENT
    del held[1]
    assert responses.free() == 1


def test_small_answers_and_those_of_the_last_block_are_copied(responses: ResponseBlocks) -> None:
    assert responses.is_copied(0, 16)
    assert not responses.is_copied(0, LARGE)
    assert responses.is_copied(BLOCKS_LENT, LARGE)
