"""Memory of bodies: never used again while any view of a body is left, and kept within its limit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.wire.body_pool import BEYOND, SMALLEST, BodyPool
from isochrone.wire.budget import MemoryBudget, Share

MIB = 1 << 20
#: All kinds of views of a body, and of views.
VIEWS: tuple[Callable[[Any], Any], ...] = (
    lambda view: view,
    lambda view: memoryview(view)[7:-7],
    lambda view: memoryview(view).cast("B").toreadonly(),
    lambda view: np.frombuffer(view, np.uint8),
    lambda view: np.frombuffer(view, np.uint8)[3:][2:].reshape(1, -1),
    lambda view: np.asarray(view)[::2],
    lambda view: np.frombuffer(view, np.uint8, len(view) // 8 * 8).view(np.int64),
    lambda view: memoryview(np.frombuffer(view, np.uint8)[1:]),
    lambda view: np.asarray(memoryview(view).obj)[5:],
)


def pool_of(limit: int) -> BodyPool:
    return BodyPool(limit, lambda: False)


def address(view: Any) -> tuple[int, int]:
    array = np.frombuffer(view, np.uint8)
    start = array.__array_interface__["data"][0]
    return start, start + array.size


steps = st.lists(
    st.tuples(st.sampled_from(("take", "view", "drop")), st.integers(0, 1000), st.integers(1, 3 * SMALLEST)),
    max_size=60,
)


@settings(max_examples=200)
@given(steps)
def test_memory_is_never_used_again_while_a_view_is_left(script: list[tuple[str, int, int]]) -> None:
    pool = pool_of(8 * SMALLEST)
    held: list[tuple[Any, bytes, tuple[int, int]]] = []
    for kind, number, size in script:
        if kind == "take":
            body = pool.take(size, BEYOND if number % 2 else 0)
            fill = random.Random(number).randbytes(len(body))
            body[:] = fill
            span = address(body)
            assert all(span[1] <= other[0] or other[1] <= span[0] for _, _, other in held)
            held.append((VIEWS[number % len(VIEWS)](body) if len(body) > 16 else body, fill, span))
            del body
        elif kind == "view" and held:
            view, fill, span = held[number % len(held)]
            if not isinstance(view, np.ndarray) and len(view) > 64:
                held.append((VIEWS[number % len(VIEWS)](view), b"", span))
            del view
        elif held:
            del held[number % len(held)]
        assert pool.kept <= pool.limit
        for view, fill, _ in held:
            if isinstance(view, memoryview) and len(view) == len(fill):
                assert view == fill
    held.clear()


def test_a_freed_body_is_the_next_of_its_size() -> None:
    pool = pool_of(MIB)
    body = pool.take(100_000, BEYOND)
    assert len(body) == 100_000 + BEYOND
    first = address(body)[0]
    view = np.frombuffer(body[5:], np.uint8)[10:]
    del body
    assert address(pool.take(100_000))[0] != first
    assert pool.kept == 128 * 1024  # the second, whose view is gone
    del view
    assert pool.kept == 256 * 1024
    assert address(pool.take(70_000))[0] == first


def test_small_and_huge_bodies_are_not_kept() -> None:
    pool = pool_of(MIB)
    for size in (1, SMALLEST - 1, 2 * MIB):
        assert len(pool.take(size)) == size
    assert pool.kept == 0


def test_the_last_view_may_end_on_any_thread() -> None:
    pool = pool_of(64 * MIB)
    threads = []
    for _ in range(8):
        views = [[np.frombuffer(pool.take(100_000), np.uint8)] for _ in range(16)]
        threads.append(threading.Thread(target=lambda mine: [view.clear() for view in mine], args=(views,)))
        del views
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threads.clear()
    assert 0 < pool.kept <= 8 * 16 * 128 * 1024
    pool.clear()
    assert pool.kept == 0


@pytest.mark.parametrize("size", [100_000, 300_000])
def test_nothing_is_kept_while_memory_is_scarce(size: int) -> None:
    budget = MemoryBudget(64 * MIB)
    share = Share(budget)
    bodies = [budget.bodies.take(size) for _ in range(4)]
    del bodies[:2]
    assert budget.bodies.kept == 2 << (size - 1).bit_length()
    share.add(61 * MIB)
    assert budget.bodies.kept == 0
    bodies.clear()
    assert budget.bodies.kept == 0
    share.give_back(61 * MIB)
    budget.bodies.take(size)
    assert budget.bodies.kept == 1 << (size - 1).bit_length()
    assert budget.bodies.limit <= budget.scarce
