"""Metrics of GPUs: Triton's names, figures from a fake NVML, and GPUs that fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from isochrone.observe.metrics import gpus
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.metrics.gpus import GpuCollector, is_visible
from isochrone.observe.snapshot import ServerSnapshot

GIB = 1 << 30


class Nvml:
    """nvidia-ml-py with ``count`` GPUs. A test lets its thread read once more with ``read``."""

    class NVMLError(Exception):
        pass

    class NVMLError_GpuIsLost(NVMLError):  # noqa: N801
        pass

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.energy = 5_000_000
        self.lost: set[int] = set()
        self.unsupported: set[str] = set()
        self.is_down = threading.Event()
        self.init_error: Exception | None = None

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.init_error

    def nvmlShutdown(self) -> None:
        self.is_down.set()

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet") or name in self.unsupported:
            raise AttributeError(name)

        def ask(handle: int) -> Any:
            if handle in self.lost:
                raise self.NVMLError_GpuIsLost("GPU is lost")
            return {
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=5),
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 * GIB, used=3 * GIB, free=137 * GIB),
                "nvmlDeviceGetPowerUsage": 123_456,
                "nvmlDeviceGetPowerManagementLimit": 700_000,
                "nvmlDeviceGetTotalEnergyConsumption": self.energy,
            }[name]

        return ask


class Paced(threading.Event):
    """Stands for the pause between two readings: a reading begins when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self._paused.release()
        self._steps.acquire()
        return self.is_set()

    def set(self) -> None:
        super().set()
        self._steps.release()

    def await_reading(self) -> None:
        assert self._paused.acquire(timeout=30)

    def read_again(self) -> None:
        self._steps.release()
        self.await_reading()


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


@pytest.fixture
def collector(nvml: Nvml) -> Iterator[GpuCollector]:
    made = GpuCollector(1.0, lambda: nvml)
    made._stopped = Paced()
    yield made
    made.stop()
    assert made._thread is None or not made._thread.is_alive()


def page(collector: GpuCollector) -> dict[tuple[str, str], float]:
    """(metric, GPU) → value, of the page's text."""
    body, _ = Exposition(ServerSnapshot, machine=False, others=(collector,)).render()
    # Not prometheus_client's parser, which renames counters.
    lines = re.findall(r'^(nv_\w+)\{gpu_uuid="(.*)"\} (.*)$', body.decode(), re.MULTILINE)
    return {(name, uuid): float(value) for name, uuid, value in lines}


def paced(collector: GpuCollector) -> Paced:
    assert isinstance(collector._stopped, Paced)
    return collector._stopped


def test_triton_s_names_and_units(nvml: Nvml, collector: GpuCollector) -> None:
    collector.start()
    paced(collector).await_reading()
    nvml.energy += 2_500
    paced(collector).read_again()
    of_one = {name: value for (name, uuid), value in page(collector).items() if uuid == "GPU-1"}
    assert of_one == {
        "nv_gpu_utilization": 0.37,
        "nv_gpu_memory_total_bytes": 140 * GIB,
        "nv_gpu_memory_used_bytes": 3 * GIB,
        "nv_gpu_power_usage": 123.456,
        "nv_gpu_power_limit": 700.0,
        "nv_energy_consumption": 2.5,
    }
    body, _ = Exposition(ServerSnapshot, machine=False, others=(collector,)).render()
    assert b"# TYPE nv_energy_consumption counter\n" in body
    assert b"# TYPE nv_gpu_utilization gauge\n" in body
    assert b'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.37\n' in body


def test_a_lost_gpu_leaves_the_page_and_the_others_stay(nvml: Nvml, collector: GpuCollector) -> None:
    collector.start()
    paced(collector).await_reading()
    nvml.lost.add(0)
    paced(collector).read_again()
    assert {uuid for _, uuid in page(collector)} == {"GPU-1"}
    nvml.lost.add(1)
    paced(collector).read_again()
    assert page(collector) == {}
    nvml.lost.clear()
    paced(collector).read_again()
    assert {uuid for _, uuid in page(collector)} == {"GPU-0", "GPU-1"}


def test_a_figure_that_a_gpu_lacks_is_left_out(nvml: Nvml, collector: GpuCollector) -> None:
    nvml.unsupported = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"}
    collector.start()
    paced(collector).await_reading()
    names = {name for name, _ in page(collector)}
    assert "nv_gpu_memory_used_bytes" in names
    assert not names & {"nv_energy_consumption", "nv_gpu_utilization"}


def test_energy_never_falls_below_zero(nvml: Nvml, collector: GpuCollector) -> None:
    collector.start()
    paced(collector).await_reading()
    nvml.energy = 10
    paced(collector).read_again()
    assert page(collector)["nv_energy_consumption", "GPU-0"] == 0


@pytest.mark.parametrize("reason", ["no module", "no driver", "no gpu"])
def test_without_a_gpu_there_is_nothing(nvml: Nvml, reason: str) -> None:
    def library() -> Any:
        if reason == "no module":
            raise ImportError("No module named 'pynvml'")
        if reason == "no driver":
            nvml.init_error = nvml.NVMLError("NVML Shared Library Not Found")
        return nvml

    nvml.count = 0
    collector = GpuCollector(1.0, library)
    collector.start()
    assert collector._thread is not None
    collector._thread.join(30)
    assert not collector._thread.is_alive()
    assert page(collector) == {}
    assert nvml.is_down.is_set() == (reason == "no gpu")
    collector.stop()


def test_an_error_of_another_kind_ends_the_metrics_alone(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(gpus, "_figures", broken)
    collector = GpuCollector(1.0, lambda: nvml)
    collector.start()
    assert collector._thread is not None
    collector._thread.join(30)
    assert page(collector) == {}
    assert nvml.is_down.is_set()


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2, 0", [0, 2]),
        ("0,-1,1", [0]),
        ("NoDevFiles", []),
        ("GPU-2", [2]),
        ("MIG-3f/1/0", [0, 1, 2]),
    ],
)
def test_only_gpus_that_cuda_shows(setting: str | None, shown: list[int]) -> None:
    assert [index for index in range(3) if is_visible(index, f"GPU-{index}abc", setting)] == shown


def test_the_variable_is_read(nvml: Nvml, collector: GpuCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    collector.start()
    paced(collector).await_reading()
    assert {uuid for _, uuid in page(collector)} == {"GPU-1"}
