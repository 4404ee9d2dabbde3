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

from isochrone.wire.bodies.body_pool import BEYOND, SMALLEST, BodyPool
from isochrone.wire.bodies.budget import MemoryBudget, Share

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
        assert pool.kept <= pool.spare <= pool.limit
        # No name is left that would keep the last of them.
        assert all(view == fill for view, fill, _ in held if isinstance(view, memoryview) and len(view) == len(fill))
    held.clear()
    assert pool.spare == pool.kept


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
    assert 0 < pool.kept == pool.spare <= 8 * 16 * 128 * 1024
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


def test_blocks_that_return_at_the_same_time_stay_within_the_limit() -> None:
    bodies: list[Any] = []

    def ends_another() -> bool:
        """As another thread may, while this one decides."""
        if bodies:
            bodies.pop()
        return False

    pool = BodyPool(2 * SMALLEST, ends_another)
    bodies += [pool.take(SMALLEST) for _ in range(4)]
    bodies.pop()
    assert not bodies
    assert pool.kept == pool.spare == 2 * SMALLEST


def test_what_a_larger_body_touched_of_a_block_counts_while_a_smaller_one_is_in_it() -> None:
    large, small = 2 * SMALLEST, SMALLEST + 1
    pool = pool_of(4 * SMALLEST)
    body = pool.take(large)
    assert pool.spare == 0
    del body
    assert pool.spare == pool.kept == 2 * SMALLEST
    first = pool.take(small)
    assert (pool.kept, pool.spare) == (0, large - small)
    second = pool.take(large)
    del second
    # There is no room for a third block beside the second and what is unused of the first.
    third = pool.take(small)
    assert pool.spare == 2 * (large - small)
    new = [pool.take(large) for _ in range(2)]
    new.clear()
    assert pool.kept == 2 * SMALLEST
    pool.clear()
    assert (pool.kept, pool.spare) == (0, 2 * (large - small))
    del first, third
    assert pool.spare == pool.kept == 4 * SMALLEST


def test_a_block_that_only_ever_had_small_bodies_has_nothing_unused() -> None:
    pool = pool_of(4 * SMALLEST)
    for _ in range(3):
        body = pool.take(SMALLEST + 1)
        assert pool.spare == 0
        del body
        assert pool.spare == 2 * SMALLEST


def test_an_update_that_another_thread_overwrote_is_found() -> None:
    pool = pool_of(4 * SMALLEST)
    bodies = [pool.take(SMALLEST) for _ in range(8)]
    del bodies[:4]
    pool._spare = 0
    del bodies[:2]
    assert pool.kept == 6 * SMALLEST  # what the pool does not know of
    for _ in range(256):
        pool.take(SMALLEST)
    # It was counted: what comes now is not kept.
    bodies.clear()
    assert pool._spare == pool.kept <= pool.limit
