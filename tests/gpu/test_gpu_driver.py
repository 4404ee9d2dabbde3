"""The layer on libcuda with a real driver: handles of another process, copies, pinned pages, and what torch reads."""

from __future__ import annotations

import base64
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.cuda.library import CudaLibrary
from isochrone.devices.cuda.memory import CudaTensor
from isochrone.devices.cuda.opened import OpenedHandles
from isochrone.devices.cuda.pinning import pin

SIZE = 4096
BYTES = np.arange(SIZE, dtype=np.uint8)


@pytest.fixture(scope="module")
def driver() -> CudaLibrary:
    return CudaLibrary()


class Owner:
    """The process that owns the memory."""

    def __init__(self) -> None:
        child = Path(__file__).with_name("exporting_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(child), str(SIZE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.handle = base64.b64decode(self._line(), validate=True)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process that exports memory ended"
        return line.strip()

    def sum(self) -> int:
        """What it reads in its memory."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._line())


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.process.communicate(timeout=60)
    assert made.process.returncode == 0


def test_the_driver(driver: CudaLibrary) -> None:
    assert driver.version() >= 12000
    assert driver.device_count() >= 1


def test_memory_of_another_process(driver: CudaLibrary, owner: Owner) -> None:
    handles = OpenedHandles(driver)
    memory, again = handles.open(0, owner.handle), handles.open(0, owner.handle)
    print(f"allocation of {SIZE} bytes, as this process sees it: {memory.size} bytes")
    assert memory is again
    assert memory.size >= SIZE
    tensor = CudaTensor(driver, 0, memory.address, (SIZE,), np.dtype(np.uint8))
    assert np.array_equal(tensor.get(), BYTES)
    assert torch.as_tensor(tensor, device="cuda").sum().item() == int(BYTES.astype(np.int64).sum())
    # Written from the host, then from one place of the device to another.
    driver.copy_from_host(0, memory.address, memoryview(bytes(SIZE)))
    assert owner.sum() == 0
    driver.copy_from_host(0, memory.address, memoryview(b"\x01" * 16))
    driver.copy_on_device(0, memory.address + 64, memory.address, 16)
    assert owner.sum() == 32
    torch.cuda.synchronize()
    handles.close(memory)
    handles.close(again)


def test_a_handle_of_this_process_cannot_be_opened(driver: CudaLibrary) -> None:
    import tritonclient.utils.cuda_shared_memory as client_memory

    region = client_memory.create_shared_memory_region("own", SIZE, 0)
    try:
        handle = base64.b64decode(client_memory.get_raw_handle(region))
        with pytest.raises(CudaError) as raised:
            driver.open_handle(0, handle)
        print(f"a handle of the own process: {raised.value}")
        assert raised.value.name.startswith("CUDA_ERROR_")
    finally:
        client_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("handle", [bytes(64), b"\xff" * 64])
def test_a_handle_of_nobody_cannot_be_opened(driver: CudaLibrary, handle: bytes) -> None:
    with pytest.raises(CudaError) as raised:
        driver.open_handle(0, handle)
    print(f"a handle of nobody: {raised.value}")
    # The device still works.
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.uint8, ml_dtypes.bfloat16])
def test_torch_reads_the_same_memory(driver: CudaLibrary, kind: Any) -> None:
    array = np.arange(12).astype(kind).reshape(3, 4)
    held = torch.empty(array.nbytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    driver.copy_from_host(0, held.data_ptr(), array.reshape(-1).view(np.uint8).data)
    tensor = CudaTensor(driver, 0, held.data_ptr(), array.shape, array.dtype)
    read = torch.from_dlpack(tensor)
    assert read.data_ptr() == held.data_ptr()
    assert read.shape == array.shape
    assert read.cpu().double().tolist() == array.astype(np.float64).tolist()
    assert torch.from_dlpack(tensor[1:3]).cpu().double().tolist() == array[1:3].astype(np.float64).tolist()
    through_interface = torch.as_tensor(tensor, device="cuda")
    assert through_interface.data_ptr() == held.data_ptr()
    assert through_interface.dtype == (torch.int16 if kind is ml_dtypes.bfloat16 else read.dtype)
    assert tensor.get().tobytes() == array.tobytes()


def test_copies_wait_for_no_other_work(driver: CudaLibrary) -> None:
    """Neither do they disturb a capture in another stream."""
    source = torch.arange(1024, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    copy = bytearray(source.nbytes)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        doubled = source * 2
    driver.copy_to_host(0, memoryview(copy), source.data_ptr())
    graph.replay()
    torch.cuda.synchronize()
    assert np.array_equal(np.frombuffer(copy, np.float32), np.arange(1024, dtype=np.float32))
    assert doubled[-1].item() == 2046


def test_pinned_pages(driver: CudaLibrary) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    view = memoryview(memory)
    pinned = pin(driver, 0, view)
    with pytest.raises(CudaError, match="ALREADY_REGISTERED"):
        pin(driver, 0, view)
    shown = torch.frombuffer(memory, dtype=torch.uint8)
    assert shown.is_pinned()
    pinned.unpin()
    pin(driver, 0, view).unpin()
    del shown


@pytest.mark.parametrize("count", [1, 2, 64])
def test_copies_from_pinned_pages_on_a_stream_of_torch(driver: CudaLibrary, count: int) -> None:
    size = 100_000
    memory = mmap.mmap(-1, count * size)
    contents = np.frombuffer(memory, np.uint8).reshape(count, size)
    contents[:] = np.random.default_rng(count).integers(0, 255, (count, size), np.uint8)
    order = np.random.default_rng(7).permutation(count)
    pinned = pin(driver, 0, memoryview(memory))
    stream = torch.cuda.Stream()
    target = torch.zeros((count, size), dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    base = int(contents.ctypes.data)
    copies = [(target[row].data_ptr(), base + int(order[row]) * size, size) for row in range(count)]
    driver.start_copies(0, copies, stream.cuda_stream)
    stream.synchronize()
    assert np.array_equal(target.cpu().numpy(), contents[order])
    # What the driver has is used, and it did not refuse.
    assert ("cuMemcpyBatchAsync_v2" in driver._functions) == (driver.version() >= 13000)
    pinned.unpin()
    del contents


def test_why_a_gpu_cannot_be_used() -> None:
    code = (
        "from isochrone.devices.gpu_facts import explain_missing_gpu as explain\n"
        "print(explain(0, 'torch')); print(explain(99, 'torch'))"
    )
    for setting, words in (("", "CUDA_VISIBLE_DEVICES='' hides"), ("0", "GPU 99 does not exist")):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": setting}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        print(run.stdout)
        assert words in run.stdout
