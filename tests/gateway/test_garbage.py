"""Replicas are kept out of full collections, and workers that left are not kept for ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from isochrone.gateway import garbage
from isochrone.gateway.garbage import ReplicaFreezer


@pytest.fixture(autouse=True)
def frozen_as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Worker:
    def __init__(self) -> None:
        self.itself = self


def test_replicas_are_frozen_a_batch_at_a_time() -> None:
    freezer = ReplicaFreezer()
    before = gc.get_freeze_count()
    freezer.made(garbage._BATCH - 1)
    assert gc.get_freeze_count() == before
    freezer.made(garbage._BATCH)
    assert gc.get_freeze_count() > before


def test_what_is_left_of_workers_is_collected_when_many_have_gone() -> None:
    freezer = ReplicaFreezer()
    workers = [Worker() for _ in range(garbage._DEPARTURES)]
    freezer.made(garbage._BATCH)
    gone = [weakref.ref(worker) for worker in workers]
    for _ in range(len(workers) - 1):
        workers.pop()
        freezer.left()
    gc.collect()
    assert gone[-1]() is not None, "frozen"
    workers.clear()
    freezer.left()
    assert not any(reference() for reference in gone)
    assert gc.get_freeze_count(), "those that stay are left out again"
