"""Metrics of NVIDIA's GPUs under Triton's names, read through NVML by a thread of their own.

A call of NVML may take milliseconds, and seconds while the driver starts: the event loop and scrapes see only the last
readings. Without nvidia-ml-py, without a driver or without a GPU there are no such metrics, and nothing is logged. A
figure that a GPU does not give is left out; a GPU that is lost leaves the page, and the others stay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

_LABELS: Final = ("gpu_uuid",)
#: Triton's counter; ``exposition`` gives such families their type.
_ENERGY: Final = "nv_energy_consumption"
_FAMILIES: Final = {
    "nv_gpu_utilization": "GPU utilization rate [0.0 - 1.0)",
    "nv_gpu_memory_total_bytes": "GPU total memory, in bytes",
    "nv_gpu_memory_used_bytes": "GPU used memory, in bytes",
    "nv_gpu_power_usage": "GPU power usage in watts",
    "nv_gpu_power_limit": "GPU power management limit in watts",
    _ENERGY: "GPU energy consumption in joules since the server started",
}
#: Seconds that a stop waits for the thread, which may be in a call of the driver.
_STOP_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Gpu:
    handle: Any
    uuid: str
    #: Millijoules at the first reading.
    energy_at_start: int | None = None
    is_lost: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)


class GpuCollector(Collector):
    """The last readings. ``start`` begins to read; any thread may collect."""

    def __init__(self, seconds: float = 1.0, library: Callable[[], Any] | None = None) -> None:
        """``library`` imports nvidia-ml-py's module."""
        self._seconds = seconds
        self._import = library or _nvml
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        #: Replaced as a whole by the thread: (uuid, figures by metric).
        self._readings: tuple[tuple[str, Mapping[str, float]], ...] = ()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gpu-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. May block for a second."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def collect(self) -> Iterator[Metric]:
        readings = self._readings
        for name, documentation in _FAMILIES.items():
            family_type = UnknownMetricFamily if name == _ENERGY else GaugeMetricFamily
            family = family_type(name, documentation, labels=_LABELS)
            for uuid, figures in readings:
                if name in figures:
                    family.add_metric((uuid,), figures[name])
            if family.samples:
                yield family

    def _run(self) -> None:
        try:
            nvml = self._import()
            nvml.nvmlInit()
        except Exception:
            return  # no library, no driver, or one that does not answer: isochrone doctor tells them apart
        try:
            gpus = _visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
            while gpus:
                self._read(nvml, gpus)
                if self._stopped.wait(self._seconds):
                    return
        except Exception as error:
            log.warning("GPU metrics end", error=str(error))
        finally:
            self._readings = ()
            try:
                nvml.nvmlShutdown()
            except Exception as error:
                log.debug("NVML does not shut down", error=str(error))

    def _read(self, nvml: Any, gpus: list[_Gpu]) -> None:
        for gpu in gpus:
            gpu.figures = _figures(nvml, gpu)
            is_lost = not gpu.figures
            if is_lost != gpu.is_lost:
                gpu.is_lost = is_lost
                if is_lost:
                    log.warning("a GPU gives no figures any more", gpu=gpu.uuid)
                else:
                    log.info("a GPU gives figures again", gpu=gpu.uuid)
        self._readings = tuple((gpu.uuid, gpu.figures) for gpu in gpus)


def _nvml() -> Any:
    import pynvml

    return pynvml


def _visible(nvml: Any, setting: str | None) -> list[_Gpu]:
    """The GPUs that CUDA shows to this process, as Triton's metrics."""
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            log.warning("a GPU has no metrics", index=index, error=str(error))
            continue
        uuid = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        if is_visible(index, uuid, setting):
            gpus.append(_Gpu(handle, uuid))
    return gpus


def is_visible(index: int, uuid: str, setting: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES lets a process use a GPU; None: the variable is not set.

    It names GPUs by number or by the beginning of their UUID, up to the first name that means none. A part of a GPU
    (MIG-…) is not among the GPUs of NVML: then all of them are shown.
    """
    if setting is None or "MIG-" in setting:
        return True
    for name in setting.split(","):
        name = name.strip()
        if name.isdecimal():
            if int(name) == index:
                return True
        elif not name.startswith("GPU-"):
            return False  # CUDA ignores everything after a name that it does not know: -1, NoDevFiles, nothing
        elif uuid.startswith(name):
            return True
    return False


def _figures(nvml: Any, gpu: _Gpu) -> dict[str, float]:
    """What the GPU gives of Triton's metrics."""
    figures: dict[str, float] = {}

    def ask(function: str) -> Any:
        try:
            return getattr(nvml, function)(gpu.handle)
        except (nvml.NVMLError, AttributeError):
            return None  # not supported by this GPU or this driver, or the GPU is lost

    if (rates := ask("nvmlDeviceGetUtilizationRates")) is not None:
        figures["nv_gpu_utilization"] = rates.gpu / 100
    if (memory := ask("nvmlDeviceGetMemoryInfo")) is not None:
        figures["nv_gpu_memory_total_bytes"] = memory.total
        figures["nv_gpu_memory_used_bytes"] = memory.used
    # NVML's milliwatts and millijoules.
    if (power := ask("nvmlDeviceGetPowerUsage")) is not None:
        figures["nv_gpu_power_usage"] = power / 1000
    if (limit := ask("nvmlDeviceGetPowerManagementLimit")) is not None:
        figures["nv_gpu_power_limit"] = limit / 1000
    if (energy := ask("nvmlDeviceGetTotalEnergyConsumption")) is not None:
        if gpu.energy_at_start is None or energy < gpu.energy_at_start:  # the driver was loaded again
            gpu.energy_at_start = energy
        figures[_ENERGY] = (energy - gpu.energy_at_start) / 1000
    return figures
