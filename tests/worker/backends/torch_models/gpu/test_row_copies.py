"""Large inputs on their way to a device: straight from callers' pinned memory, or gathered, or both in one batch."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from fake_cuda import FakeDriver
from isochrone.devices.cuda.client_pages import CLIENT_PAGES
from isochrone.errors import ModelFailed
from isochrone.models.signature import signature_of
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.files import LoadedFile
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from isochrone.worker.backends.torch.gpu.graphs import GRAPH_COPY_BYTES
from isochrone.worker.backends.torch.gpu.loading import load_on_device
from isochrone.worker.backends.torch.gpu.row_copies import DIRECT_BYTES
from isochrone.worker.backends.torch.gpu.settings import gpu_settings

#: Elements of a row: 64 KiB of float32.
WIDTH = 16384
ROW = WIDTH * 4
ROWS = 8
CONFIG = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 16384 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 16384 ] }
"""


class CountingDevice(HostDevice):
    """Whose work ends when the gate is open; knows the copies that callers' memory was read by."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.copies: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def start_copies(self, copies: Any, stream: Any) -> None:
        self.copies += [size for _, _, size in copies]
        super().start_copies(copies, stream)

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream=None: None, synchronize=self.gate.wait)

    def wait(self, stream: Any, event: Any) -> None: ...


class Twice(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Raising(Twice):
    """Not for graphs: what a capture runs on is memory that nobody has written, which may hold anything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == 13).any():
            raise RuntimeError("thirteen")
        return super().forward(x)


def loaded(device: Any, config: str = CONFIG, module: Any = None) -> GpuExecutable:
    message = model_config_pb2.ModelConfig(name="m")
    text_format.Parse(config, message)
    plain = {key: value.string_value for key, value in message.parameters.items()}
    context = LoadContext("m", "1", Path("/nowhere/m/1"), message, signature_of(message), 0, (), plain, gpu=0)
    module = module or Twice()
    file = LoadedFile(module, ["x"], [], module.to)
    made = load_on_device(context, torch, file, (["x"], []), device, gpu_settings(context), 0)
    assert isinstance(made, GpuExecutable)
    return made


def request(array: Any) -> Any:
    return SimpleNamespace(
        inputs={"x": array},
        plan=SimpleNamespace(batch_size=array.shape[0], outputs=None),
        output_target=lambda name, shape, dtype: None,
    )


class Client:
    """Shared memory of a client, registered as a region; ``rows`` are inputs in it."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        #: Of other tests.
        self.offered_before = len(CLIENT_PAGES._ranges)
        self.regions = SharedMemoryRegions()
        self.memory = shared_memory.SharedMemory(uuid.uuid4().hex, create=True, size=ROWS * ROW + 64)
        self.contents = np.ndarray((ROWS, WIDTH), np.float32, self.memory.buf, 64)
        self.contents[:] = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) % 1000 + 20
        self.regions.register("r", self.memory.name, 0, ROWS * ROW + 64)

    def rows(self, start: int, count: int = 1) -> Any:
        view = self.regions.view("r", 64 + start * ROW, count * ROW)
        return np.frombuffer(view, np.float32).reshape(count, WIDTH)

    def close(self) -> None:
        self.regions.close()
        CLIENT_PAGES.wait()
        del self.contents
        self.memory.close()
        self.memory.unlink()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    driver = FakeDriver()
    monkeypatch.setattr(CLIENT_PAGES, "_load_driver", lambda: driver)
    made = Client(driver)
    yield made
    made.close()
    assert driver.pinned == {}


def pinned(executable: GpuExecutable, client: Client) -> None:
    """Make the executable want the region, and wait until it is pinned."""
    executable.execute({"x": client.rows(0, ROWS)}, None)
    CLIENT_PAGES.wait()
    assert list(client.driver.pinned.values()) == [ROWS * ROW + 64]


@pytest.fixture
def device() -> CountingDevice:
    return CountingDevice()


@pytest.fixture
def executable(device: CountingDevice) -> Iterator[GpuExecutable]:
    made = loaded(device)
    yield made
    made.close()


def test_the_device_reads_the_region_once_it_is_pinned(
    client: Client, device: CountingDevice, executable: GpuExecutable
) -> None:
    pinned(executable, client)
    assert device.copies == []
    requests = [request(client.rows(place)) for place in (5, 0, 3, 3, 7)]
    results = executable.collect_batch(executable.launch_batch(requests, 5))
    assert device.copies == [ROW] * 5
    for given_request, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(result["y"], given_request.inputs["x"] * 2)
    np.testing.assert_array_equal(executable.execute({"x": client.rows(2, 6)}, None)["y"], client.contents[2:] * 2)
    assert device.copies[5:] == [6 * ROW]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_batches_of_both_kinds(
    client: Client, device: CountingDevice, executable: GpuExecutable, parts: list[tuple[bool, int]], seed: int
) -> None:
    if not client.driver.pinned:
        pinned(executable, client)
    generator = np.random.default_rng(seed)
    requests, rows, direct = [], 0, 0
    for shared, count in parts:
        if rows + count > ROWS:
            continue
        if shared:
            requests.append(request(client.rows(int(generator.integers(0, ROWS - count + 1)), count)))
            direct += 1
        else:
            requests.append(request(generator.standard_normal((count, WIDTH), dtype=np.float32)))
        rows += count
    device.copies.clear()
    results = executable.collect_batch(executable.launch_batch(requests, rows))
    for given_request, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(result["y"], given_request.inputs["x"] * 2)
    assert executable.graphs is not None
    graph = executable.graphs.graph_for(rows, (("x", (WIDTH,)),))
    assert graph is not None
    # Small batches are one launch, which reads the slot. Inputs and outputs are of one size.
    assert bool(graph.by_slot) == (2 * graph.rows * ROW < GRAPH_COPY_BYTES)
    assert len(device.copies) == (0 if graph.by_slot else direct)


def test_a_small_batch_is_gathered_and_pins_nothing(client: Client, device: CountingDevice) -> None:
    executable = loaded(device, CONFIG + 'parameters { key: "graph_batch_sizes" value { string_value: "2,4" } }')
    executable.execute({"x": np.ones((2, WIDTH), np.float32)}, None)  # leaves what padding must not keep
    for _ in range(2):
        flight = executable.launch_batch([request(client.rows(5))], 1)
        np.testing.assert_array_equal(executable.collect_batch(flight)[0]["y"], client.contents[5:6] * 2)
        CLIENT_PAGES.wait()
    assert device.copies == []
    assert client.driver.pinned == {}
    assert executable.graphs is not None
    graph = executable.graphs.graph_for(1, (("x", (WIDTH,)),))
    assert graph is not None
    assert not graph.inputs["x"][1:].any()
    executable.close()


def test_what_the_model_reads_in_another_type_is_converted_on_the_device(
    client: Client, device: CountingDevice, executable: GpuExecutable
) -> None:
    pinned(executable, client)
    client.contents[:] = 3
    in_half = 'parameters { key: "dtype" value { string_value: "bf16" } }'
    converting = loaded(device, CONFIG + in_half + "optimization { cuda { graphs: false } }")
    result = converting.execute({"x": client.rows(0, ROWS)}, None)["y"]
    np.testing.assert_array_equal(result, client.contents * 2)
    assert device.copies == [ROWS * ROW]
    converting.close()


def test_what_the_device_cannot_read_itself_is_gathered(
    client: Client, device: CountingDevice, executable: GpuExecutable
) -> None:
    pinned(executable, client)
    backwards = client.rows(0, ROWS)[::-1]
    np.testing.assert_array_equal(executable.execute({"x": backwards}, None)["y"], client.contents[::-1] * 2)
    assert device.copies == []


def test_a_row_below_the_limit_is_gathered(client: Client, device: CountingDevice) -> None:
    width = DIRECT_BYTES // 4 - 1
    executable = loaded(device, CONFIG.replace("16384", str(width)).replace("size: 8", "size: 64"))
    whole = np.frombuffer(client.regions.view("r", 0, 8 * width * 4), np.float32).reshape(8, width)
    for _ in range(2):
        requests = [request(whole[number : number + 1]) for number in range(8)] * 2
        results = executable.collect_batch(executable.launch_batch(requests, 16))
        np.testing.assert_array_equal(np.concatenate([result["y"] for result in results[:8]]), whole * 2)
        CLIENT_PAGES.wait()
    assert device.copies == []
    executable.close()


def test_bfloat16_and_a_model_without_batches(client: Client, device: CountingDevice) -> None:
    config = 'input { name: "x" data_type: TYPE_BF16 dims: [ 4, 65536 ] }'
    config += 'output { name: "y" data_type: TYPE_BF16 dims: [ 4, 65536 ] }'
    executable = loaded(device, config)
    client.contents.view(ml_dtypes.bfloat16)[:] = np.arange(ROWS * WIDTH * 2).reshape(ROWS, -1) % 50 + 20
    view = client.regions.view("r", 64, 4 * 65536 * 2)
    array = np.frombuffer(view, ml_dtypes.bfloat16).reshape(4, 65536)
    for copies in ([], [array.nbytes]):
        result = executable.execute({"x": array}, None)["y"]
        np.testing.assert_array_equal(result.astype(np.float32), array.astype(np.float32) * 2)
        assert device.copies == copies
        CLIENT_PAGES.wait()
    executable.close()


def test_a_region_stays_pinned_until_the_batches_that_read_it_are_collected(
    client: Client, device: CountingDevice, executable: GpuExecutable
) -> None:
    pinned(executable, client)
    expected = client.contents.copy() * 2
    device.gate.clear()
    flights = [executable.launch_batch([request(client.rows(0, ROWS))], ROWS) for _ in range(2)]
    # As after execution_timeout_ms: no request holds the region any more.
    client.regions.unregister("r")
    CLIENT_PAGES.wait()
    assert client.driver.pinned
    device.gate.set()
    np.testing.assert_array_equal(executable.collect_batch(flights[0])[0]["y"], expected)
    CLIENT_PAGES.wait()
    assert client.driver.pinned
    np.testing.assert_array_equal(executable.collect_batch(flights[1])[0]["y"], expected)
    CLIENT_PAGES.wait()
    assert client.driver.pinned == {}
    assert len(CLIENT_PAGES._ranges) == client.offered_before


def test_a_batch_that_fails_holds_nothing(client: Client, device: CountingDevice) -> None:
    executable = loaded(device, CONFIG + "optimization { cuda { graphs: false } }", Raising())
    pinned(executable, client)
    client.contents[3, 3] = 13
    for _ in range(5):
        with pytest.raises(ModelFailed, match="thirteen"):
            executable.execute({"x": client.rows(0, ROWS)}, None)
        with pytest.raises(ModelFailed, match="thirteen"):
            executable.launch_batch([request(client.rows(0, ROWS))], ROWS)
    assert device.copies == [ROWS * ROW] * 10
    client.regions.unregister("r")
    CLIENT_PAGES.wait()
    assert client.driver.pinned == {}
    executable.close()


def test_a_copy_that_cannot_start_fails_its_batch_alone(
    client: Client, device: CountingDevice, executable: GpuExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned(executable, client)

    def refuse(copies: Any, stream: Any) -> None:
        raise RuntimeError("no copies today")

    with monkeypatch.context() as patch:
        patch.setattr(device, "start_copies", refuse)
        with pytest.raises(ModelFailed, match="no copies today"):
            executable.launch_batch([request(client.rows(0, ROWS))], ROWS)
    np.testing.assert_array_equal(executable.execute({"x": client.rows(0, ROWS)}, None)["y"], client.contents * 2)
    client.regions.unregister("r")
    CLIENT_PAGES.wait()
    assert client.driver.pinned == {}


def test_a_region_that_cannot_be_pinned_is_gathered(
    client: Client, device: CountingDevice, executable: GpuExecutable
) -> None:
    client.driver.fails["register_host"] = "CUDA_ERROR_INVALID_VALUE"
    for _ in range(3):
        np.testing.assert_array_equal(executable.execute({"x": client.rows(0, ROWS)}, None)["y"], client.contents * 2)
        CLIENT_PAGES.wait()
    assert device.copies == []
    assert client.driver.pinned == {}


def test_without_a_model_on_a_gpu_nothing_is_pinned(client: Client) -> None:
    assert client.rows(0).sum() > 0
    CLIENT_PAGES.wait()
    assert client.driver.pinned == {}
