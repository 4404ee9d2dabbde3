"""System shared memory on a GPU: pinned by its first use, read by the GPU itself, unpinned when nothing reads it."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.utils.shared_memory as client_memory
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from isochrone.devices.cuda.client_pages import CLIENT_PAGES
from isochrone.models.signature import signature_of
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from server_process import StartServer

#: A picture of 3 x 224 x 224 in fp16 has as many bytes: 301 kB.
WIDTH = 75264
ROW = WIDTH * 4
PLACES = 96
MOST = 64
CONFIG = f"""max_batch_size: {MOST}
input {{ name: "x" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 16 ] }}
instance_group {{ kind: KIND_GPU count: 1 gpus: [ 0 ] }}
parameters {{ key: "graph_batch_sizes" value {{ string_value: "1,16,64" }} }}
"""


class Sums(torch.nn.Module):  # type: ignore[misc]
    """Every element counts, and sums of small integers are exact whatever their order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 16, -1).sum(2)


def sums(x: Any) -> Any:
    return x.reshape(len(x), 16, -1).astype(np.int64).sum(2).astype(np.float32)


def write(directory: Path) -> None:
    directory.mkdir(parents=True)
    rows = torch.export.Dim("rows", min=1, max=MOST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Sums().eval(), (torch.zeros(2, WIDTH),), dynamic_shapes=({0: rows},))
        torch.export.save(program, str(directory / "model.pt2"))


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuExecutable]:
    directory = tmp_path_factory.mktemp("pinned") / "1"
    write(directory)
    message = model_config_pb2.ModelConfig(name="m")
    text_format.Parse(CONFIG, message)
    plain = {key: value.string_value for key, value in message.parameters.items()}
    made = load(LoadContext("m", "1", directory, message, signature_of(message), 0, (), plain, gpu=0))
    assert isinstance(made, GpuExecutable)
    yield made
    made.close()


class Client:
    """Shared memory with rows of small integers, registered as the region ``r``."""

    def __init__(self) -> None:
        self.regions = SharedMemoryRegions()
        self.memory = shared_memory.SharedMemory(create=True, size=PLACES * ROW)
        self.contents = np.ndarray((PLACES, WIDTH), np.float32, self.memory.buf)
        self.contents[:] = np.random.default_rng(11).integers(0, 255, (PLACES, WIDTH))
        self.expected = sums(self.contents)
        self.regions.register("r", self.memory.name, 0, PLACES * ROW)

    def rows(self, place: int, count: int = 1) -> Any:
        view = self.regions.view("r", place * ROW, count * ROW)
        return np.frombuffer(view, np.float32).reshape(count, WIDTH)

    def is_pinned(self) -> bool:
        """As CUDA says."""
        return bool(torch.from_numpy(self.rows(0)).is_pinned())

    def close(self) -> None:
        self.regions.close()
        CLIENT_PAGES.wait()
        del self.contents
        self.memory.close()
        self.memory.unlink()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()
    assert not CLIENT_PAGES


def request(array: Any) -> Any:
    return SimpleNamespace(
        inputs={"x": array},
        plan=SimpleNamespace(batch_size=array.shape[0], outputs=None),
        output_target=lambda name, shape, dtype: None,
    )


def pinned(executable: GpuExecutable, client: Client) -> None:
    assert not client.is_pinned()
    executable.execute({"x": client.rows(0, 2)}, None)
    CLIENT_PAGES.wait()
    assert client.is_pinned()


@pytest.fixture
def direct(executable: GpuExecutable, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the copies that the device makes from callers' memory."""
    sizes: list[int] = []
    start: Callable[[Any, Any], None] = executable._device.start_copies

    def counted(copies: Any, stream: Any) -> None:
        sizes.extend(size for _, _, size in copies)
        start(copies, stream)

    monkeypatch.setattr(executable._device, "start_copies", counted)
    return sizes


def test_answers_from_a_pinned_region(executable: GpuExecutable, client: Client, direct: list[int]) -> None:
    pinned(executable, client)
    generator = np.random.default_rng(0)
    flights: list[Any] = []

    def collect() -> None:
        places, flight = flights.pop(0)
        for place, result in zip(places, executable.collect_batch(flight), strict=True):
            np.testing.assert_array_equal(result["y"][0], client.expected[place])

    for rows in (64, 64, 1, 17, 64, 33, 64, 5, 64, 64):
        places = generator.integers(0, PLACES, rows).tolist()
        flights.append((places, executable.launch_batch([request(client.rows(place)) for place in places], rows)))
        if len(flights) == 3:
            collect()
    while flights:
        collect()
    # One row alone is one launch, from the slot.
    assert direct == [ROW] * (64 * 6 + 17 + 33 + 5)


def test_batches_of_shared_memory_and_of_messages(executable: GpuExecutable, client: Client, direct: list[int]) -> None:
    pinned(executable, client)
    generator = np.random.default_rng(1)
    for _ in range(10):
        arrays, expected = [], []
        for _ in range(MOST):
            place = int(generator.integers(0, PLACES))
            arrays.append(client.rows(place) if generator.integers(0, 2) else client.rows(place).copy())
            expected.append(client.expected[place])
        results = executable.collect_batch(executable.launch_batch([request(array) for array in arrays], MOST))
        np.testing.assert_array_equal(np.concatenate([result["y"] for result in results]), np.stack(expected))
    assert 100 < len(direct) < 540


def test_messages_alone_are_gathered_by_several_threads(executable: GpuExecutable, client: Client) -> None:
    copies = [client.rows(place).copy() for place in range(MOST)]
    for _ in range(20):
        results = executable.collect_batch(executable.launch_batch([request(array) for array in copies], MOST))
        np.testing.assert_array_equal(np.concatenate([result["y"] for result in results]), client.expected[:MOST])


def test_a_region_that_is_unregistered_while_the_gpu_reads_it(
    executable: GpuExecutable, client: Client, direct: list[int]
) -> None:
    for _ in range(20):
        pinned(executable, client)
        shown = torch.from_numpy(client.rows(0))
        requests = [request(client.rows(place)) for place in range(MOST)]
        flights = [executable.launch_batch(requests, MOST) for _ in range(3)]
        # As after execution_timeout_ms: no request holds the region.
        client.regions.unregister("r")
        assert shown.is_pinned()
        for flight in flights:
            assert shown.is_pinned()
            results = executable.collect_batch(flight)
            np.testing.assert_array_equal(np.concatenate([result["y"] for result in results]), client.expected[:MOST])
        CLIENT_PAGES.wait()
        assert not shown.is_pinned()
        assert not CLIENT_PAGES
        del shown, requests
        client.regions.register("r", client.memory.name, 0, PLACES * ROW)
    assert direct == [ROW] * (20 * 3 * MOST)


def test_a_region_that_shrank_is_not_pinned(executable: GpuExecutable, client: Client) -> None:
    """Its pages are not there: the attempt fails, and the server lives."""
    executable.execute({"x": client.rows(0, 1).copy()}, None)
    short = shared_memory.SharedMemory(create=True, size=4 * ROW)
    try:
        np.ndarray((4, WIDTH), np.float32, short.buf)[:] = 1
        client.regions.register("short", short.name, 0, 4 * ROW)
        # Two rows: one alone would be gathered.
        array = np.frombuffer(client.regions.view("short", 0, 2 * ROW), np.float32).reshape(2, WIDTH)
        with open(f"/dev/shm/{short.name}", "r+b") as file:
            file.truncate(2 * ROW)
        for _ in range(2):
            assert executable.execute({"x": array}, None)["y"].sum() == 2 * WIDTH
            CLIENT_PAGES.wait()
        assert not torch.from_numpy(array).is_pinned()
        del array
        client.regions.unregister("short")
    finally:
        short.close()
        short.unlink()


def test_stock_clients(tmp_path: Path, server_factory: StartServer, shared_memory_prefix: str) -> None:
    """Many requests in flight from one region, with registrations between them."""
    write(tmp_path / "sums" / "1")
    (tmp_path / "sums" / "config.pbtxt").write_text(
        f'name: "sums"\nbackend: "pytorch"\ndynamic_batching {{ }}\n{CONFIG}'
    )
    key = f"{shared_memory_prefix}pinned"
    handle = client_memory.create_shared_memory_region("r", key, PLACES * ROW)
    try:
        contents = np.random.default_rng(5).integers(0, 255, (PLACES, WIDTH)).astype(np.float32)
        client_memory.set_shared_memory_region(handle, [contents])
        expected = sums(contents)
        with (
            server_factory(tmp_path, "--allow-shared-memory") as server,
            tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        ):
            for _ in range(5):
                client.register_system_shared_memory("r", key, PLACES * ROW)
                for _ in range(3):
                    _check(client, expected)
                calls = [_start(client, place) for place in range(32)]
                in_use = _refusal(client)
                assert in_use in ("", "it is currently in use")
                for place, call in enumerate(calls):
                    result, error = call.get(timeout=60)
                    if error is None:
                        np.testing.assert_array_equal(result.as_numpy("y")[0], expected[place])
                    else:
                        assert "Unable to find shared memory region" in str(error)
                if in_use:
                    client.unregister_system_shared_memory("r")
            assert client.is_server_ready()
            assert "is not pinned" not in server.log_text()
    finally:
        client_memory.destroy_shared_memory_region(handle)


def _start(client: Any, place: int) -> Any:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    given = tritonclient.grpc.InferInput("x", [1, WIDTH], "FP32")
    given.set_shared_memory("r", ROW, place * ROW)
    client.async_infer("sums", [given], lambda result, error: answers.put((result, error)))
    return answers


def _check(client: Any, expected: Any) -> None:
    calls = [_start(client, place) for place in range(PLACES)]
    for place, call in enumerate(calls):
        result, error = call.get(timeout=60)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("y")[0], expected[place])


def _refusal(client: Any) -> str:
    """Why the region cannot be unregistered; "": it was."""
    try:
        client.unregister_system_shared_memory("r")
    except InferenceServerException as error:
        return str(error).partition(", ")[2].rstrip(".")
    return ""
