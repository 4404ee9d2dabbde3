"""Clients' memory, pinned by the first GPU that wants it, with a driver of the host."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fake_cuda import FakeDriver
from isochrone.devices.cuda import client_pages
from isochrone.devices.cuda.client_pages import ClientPages
from isochrone.devices.cuda.host_ranges import HostRange
from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.cuda.library import host_address

SIZE = 4 * mmap.PAGESIZE


class Memory:
    """Mapped pages, as a region has them."""

    def __init__(self) -> None:
        self.mapped = mmap.mmap(-1, SIZE)
        self.address = host_address(memoryview(self.mapped))

    def spans(self, count: int = 1) -> list[tuple[int, int]]:
        return [(self.address + number, 100) for number in range(count)]


class GatedDriver(FakeDriver):
    """Pins when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def register_host(self, device: int, address: int, size: int) -> None:
        self.reached.set()
        assert self.gate.wait(60)
        super().register_host(device, address, size)


@pytest.fixture
def driver() -> GatedDriver:
    return GatedDriver()


@pytest.fixture
def pages(driver: GatedDriver) -> Iterator[ClientPages]:
    made = ClientPages(lambda: driver)
    yield made
    driver.gate.set()
    made.wait()


def test_memory_is_pinned_when_a_device_first_wants_it(pages: ClientPages, driver: FakeDriver) -> None:
    assert not pages
    memory = Memory()
    offered = pages.offer(memoryview(memory.mapped))
    assert pages
    assert driver.pinned == {}
    held: list[HostRange] = []
    assert pages.hold(memory.spans(3), 0, held) == [False, False, False]
    assert held == []
    pages.wait()
    assert driver.pinned == {memory.address: SIZE}
    spans = [*memory.spans(2), (memory.address + SIZE - 50, 100), (0, 0), (64, 8), *memory.spans(1)]
    assert pages.hold(spans, 0, held) == [True, True, False, False, False, True]
    assert held == [offered]
    pages.release(held)
    pages.withdraw(offered)
    pages.wait()
    assert driver.pinned == {}
    assert not pages


def test_a_copy_under_way_keeps_memory_pinned_and_mapped(pages: ClientPages, driver: FakeDriver) -> None:
    memory = Memory()
    mapped = weakref.ref(memory.mapped)
    offered = pages.offer(memoryview(memory.mapped))
    pages.hold(memory.spans(), 0, [])
    pages.wait()
    held: list[list[HostRange]] = [[], []]
    for each in held:
        assert pages.hold(memory.spans(), 0, each) == [True]
    pages.withdraw(offered)
    spans = memory.spans()
    del memory
    gc.collect()
    pages.wait()
    assert driver.pinned
    assert mapped() is not None
    assert pages.hold(spans, 0, []) == [False]
    pages.release(held[0])
    pages.wait()
    assert driver.pinned
    pages.release(held[1])
    pages.wait()
    assert driver.pinned == {}
    assert mapped() is None


def test_memory_withdrawn_before_any_device_wants_it(pages: ClientPages, driver: FakeDriver) -> None:
    memory = Memory()
    mapped = weakref.ref(memory.mapped)
    pages.withdraw(pages.offer(memoryview(memory.mapped)))
    assert not pages
    del memory
    assert mapped() is None
    assert driver.pinned == {}


def test_memory_withdrawn_while_it_is_being_pinned(pages: ClientPages, driver: GatedDriver) -> None:
    driver.gate.clear()
    memory = Memory()
    offered = pages.offer(memoryview(memory.mapped))
    assert pages.hold(memory.spans(), 0, []) == [False]
    assert driver.reached.wait(60)
    assert pages.hold(memory.spans(), 0, []) == [False]
    pages.withdraw(offered)
    driver.gate.set()
    pages.wait()
    assert driver.pinned == {}
    assert not pages


@pytest.mark.parametrize("withdrawn", [False, True])
def test_memory_that_cannot_be_pinned_is_tried_once(pages: ClientPages, driver: GatedDriver, withdrawn: bool) -> None:
    driver.fails["register_host"] = "CUDA_ERROR_INVALID_VALUE"
    driver.gate.clear()
    memory = Memory()
    offered = pages.offer(memoryview(memory.mapped))
    pages.hold(memory.spans(), 0, [])
    assert driver.reached.wait(60)
    if withdrawn:
        pages.withdraw(offered)
    driver.gate.set()
    pages.wait()
    assert pages.hold(memory.spans(), 0, []) == [False]
    pages.wait()
    assert driver.pinned == {}
    if not withdrawn:
        pages.withdraw(offered)
    assert not pages


def test_a_process_without_a_driver() -> None:
    def missing() -> Any:
        raise CudaError("libcuda.so.1", "the driver's library cannot be loaded")

    pages = ClientPages(missing)
    memory = Memory()
    offered = pages.offer(memoryview(memory.mapped))
    assert pages.hold(memory.spans(), 0, []) == [False]
    pages.wait()
    assert pages.hold(memory.spans(), 0, []) == [False]
    pages.withdraw(offered)
    assert not pages


def test_no_more_is_pinned_than_may_be(pages: ClientPages, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_pages, "MAX_PINNED_BYTES", 2 * SIZE)
    memories = [Memory() for _ in range(3)]
    offered = [pages.offer(memoryview(memory.mapped)) for memory in memories]
    for memory in memories:
        pages.hold(memory.spans(), 0, [])
    pages.wait()
    assert set(driver.pinned) == {memory.address for memory in memories[:2]}
    for each in offered:
        pages.withdraw(each)
    pages.wait()
    assert driver.pinned == {}
    later = Memory()
    offered = [pages.offer(memoryview(later.mapped))]
    pages.hold(later.spans(), 0, [])
    pages.wait()
    assert set(driver.pinned) == {later.address}
    pages.withdraw(offered[0])


def test_a_driver_that_fails_to_unpin(pages: ClientPages, driver: FakeDriver) -> None:
    memory = Memory()
    offered = pages.offer(memoryview(memory.mapped))
    pages.hold(memory.spans(), 0, [])
    pages.wait()
    driver.fails["unregister_host"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    pages.withdraw(offered)
    pages.wait()
    assert not pages


def test_many_threads(pages: ClientPages, driver: FakeDriver) -> None:
    """Instances hold and release while regions come and go: nothing stays pinned."""

    def come_and_go() -> None:
        for _ in range(50):
            memory = Memory()
            offered = pages.offer(memoryview(memory.mapped))
            for _ in range(3):
                held: list[HostRange] = []
                assert any(pages.hold(memory.spans(4), 0, held)) == bool(held)
                assert all(each.address in driver.pinned for each in held)
                pages.release(held)
            pages.withdraw(offered)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages.wait()
    assert driver.pinned == {}
    assert not pages
