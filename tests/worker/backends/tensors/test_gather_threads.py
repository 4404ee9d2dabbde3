"""Gathering by several threads: every element comes from its place, and errors are raised."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.worker.backends.tensors import gathering
from isochrone.worker.backends.tensors.gathering import GatherThreads, shares

THREADS = GatherThreads()


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_CPUS", {0, 1, 2, 3})
    monkeypatch.setattr(gathering, "PARALLEL_BYTES", 1)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 8))
def test_shares_are_balanced_and_cover_everything_once(sizes: list[int], count: int) -> None:
    parts = shares(sizes, count)
    assert len(parts) == count
    elements = [(source, number) for part in parts for source, start, stop in part for number in range(start, stop)]
    assert elements == [(source, number) for source, size in enumerate(sizes) for number in range(size)]
    totals = [sum(stop - start for _, start, stop in part) for part in parts]
    assert max(totals) - min(totals) <= 1
    assert all(start < stop for part in parts for _, start, stop in part)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_rows_are_gathered_in_order(rows_of: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrays = [generator.integers(0, 1000, (rows, 3, 5)).astype(np.float16) for rows in rows_of]
    target = np.empty((sum(rows_of), 3, 5), np.float16)
    THREADS.gather(arrays, target)
    np.testing.assert_array_equal(target, np.concatenate(arrays))


def test_arrays_that_are_not_contiguous_or_of_another_type() -> None:
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    target = np.empty((6, 5), np.float64)
    THREADS.gather([whole[:3, ::2], whole[3:, ::2].astype(np.float16)], target)
    np.testing.assert_array_equal(target, whole[:, ::2])


class Failing(np.ndarray):  # type: ignore[type-arg]
    """Whose parts cannot be copied."""

    def __array_function__(self, *given: Any, **named: Any) -> Any:
        raise MemoryError("no memory")


@pytest.mark.parametrize("position", range(4))
def test_an_error_of_any_thread_is_raised_and_the_threads_go_on(position: int) -> None:
    arrays: list[Any] = [np.ones(8) for _ in range(4)]
    target = np.empty(32)
    arrays[position] = arrays[position].view(Failing)
    for _ in range(3):
        with pytest.raises(MemoryError, match="no memory"):
            THREADS.gather(arrays, target)
    arrays[position] = np.ones(8)
    THREADS.gather(arrays, target)
    assert target.sum() == 32


def named() -> int:
    return sum(thread.name.startswith("gathering") for thread in threading.enumerate())


def test_a_small_batch_and_a_process_with_one_processor_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = named()
    monkeypatch.setattr(gathering, "PARALLEL_BYTES", 64)
    made = GatherThreads()
    target = np.zeros(7)
    made.gather([np.ones(3), np.ones(4)], target)
    assert target.sum() == 7
    monkeypatch.setattr(gathering, "_CPUS", {5})
    large = np.zeros(100)
    made.gather([np.ones(50), np.ones(50)], large)
    assert large.sum() == 100
    assert named() == before


def test_threads_are_made_once_and_keep_no_process_from_ending() -> None:
    made = GatherThreads()
    before = named()
    for _ in range(3):
        made.gather([np.ones(50), np.ones(50)], np.zeros(100))
    assert named() == before + 3
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("gathering"))


FORKING = """
import os
import numpy as np
from isochrone.worker.backends.tensors import gathering
gathering._CPUS = {0, 1, 2, 3}
gathering.PARALLEL_BYTES = 1
target = np.zeros(100)
gathering.gather([np.ones(50), np.ones(50)], target)
child = os.fork()
gathering.gather([np.ones(50), np.full(50, 2.0)], target)
assert target.sum() == 150
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_makes_its_own_threads_and_both_processes_end() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=60)


def test_several_callers_at_once() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        arrays = [np.full(1000, number * 10 + each, np.float32) for each in range(6)]
        for _ in range(50):
            target = np.empty(6000, np.float32)
            THREADS.gather(arrays, target)
            if not np.array_equal(target, np.concatenate(arrays)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_pinned_thread_decides_for_nobody() -> None:
    code = """
import os, threading
import numpy as np
from isochrone.worker.backends.tensors import gathering
if len(os.sched_getaffinity(0)) > 1:
    gathering.PARALLEL_BYTES = 1
    whole = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(whole)})
    gathering.gather([np.ones(50), np.ones(50)], np.zeros(100))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("gathering")]
    assert threads
    assert all(os.sched_getaffinity(thread.native_id) == whole for thread in threads)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
