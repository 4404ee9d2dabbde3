"""Models that reserve multiprocessors of a GPU: which streams they and the others get, and what is rejected."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from host_models import BATCHED, context_of
from structlog.testing import capture_logs

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.green_contexts import GreenContexts, GreenDriver
from isochrone.devices.sm_plan import SmDivision, SmLimits
from isochrone.errors import ConfigError
from isochrone.worker.backends.devices.streams import StreamShelf
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import load
from isochrone.worker.backends.torch.gpu import device
from isochrone.worker.backends.torch.gpu.device import CudaDevice
from isochrone.worker.backends.torch.gpu.settings import gpu_settings
from isochrone.worker.backends.torch.gpu.sm_partitions import SmPartitions

RESERVED, REST, WHOLE = 1000, 2000, 3000


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


class Driver(GreenDriver):
    """An H200. Handles of streams are those of their contexts and a number."""

    def __init__(self) -> None:
        self.divisions: list[tuple[int, int]] = []
        self._numbers = count(1)

    def limits(self, device: int) -> SmLimits:
        return SmLimits(132, 8, 8)

    def divide(self, device: int, reserved: int) -> GreenContexts:
        self.divisions.append((device, reserved))
        return GreenContexts(RESERVED, REST, SmDivision(reserved, 132 - reserved))

    def new_stream(self, context: int) -> int:
        return context + next(self._numbers)


class Gpu:
    """The GPU of a process, as its instances see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = Driver()
        self.shelf = StreamShelf()
        self.partitions = SmPartitions(self.shelf, lambda: self.driver)
        self._numbers = count(1)
        monkeypatch.setattr(device, "SHELF", self.shelf)
        self._torch: Any = SimpleNamespace(
            cuda=SimpleNamespace(
                default_stream=lambda index: None,
                Stream=lambda index: SimpleNamespace(cuda_stream=WHOLE + next(self._numbers)),
            )
        )

    def load(self, config: str = "", server: str = "") -> CudaDevice:
        """The device of a new instance; ``server``: the value of --backend-config."""
        context = context_of(BATCHED + config)
        if server:
            context = replace(context, parameters={"reserved_sms": server, **context.parameters})
        settings = gpu_settings(context)
        if settings.reserved_sms:
            self.divide(context, settings.reserved_sms, is_own=settings.is_reserved)
        return CudaDevice(self._torch, 0, is_reserved=settings.is_reserved)

    def divide(self, context: LoadContext, reserved: int, *, is_own: bool) -> None:
        def wrap(handle: int, gpu: int) -> Any:
            return SimpleNamespace(cuda_stream=handle, gpu=gpu)

        self.partitions.divide(context, 0, reserved, wrap, is_own=is_own)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def part(stream: Any) -> int:
    return int(stream.cuda_stream) // 1000 * 1000


def test_a_model_that_reserves_sms_has_them_and_later_models_have_the_rest(gpu: Gpu) -> None:
    urgent, patient = gpu.load(parameter("reserved_sms", "16")), gpu.load()
    assert [part(urgent.stream()) for _ in range(3)] == [RESERVED] * 3
    assert [part(patient.stream()) for _ in range(3)] == [REST] * 3
    assert gpu.driver.divisions == [(0, 16)]
    other = gpu.load(parameter("RESERVED_SMS", "16"))
    assert part(other.stream()) == RESERVED
    assert gpu.driver.divisions == [(0, 16)]


def test_without_the_parameter_nothing_is_divided(gpu: Gpu) -> None:
    assert part(gpu.load().stream()) == WHOLE
    assert part(gpu.load(parameter("reserved_sms", "0")).stream()) == WHOLE
    assert not gpu.driver.divisions


def test_when_nobody_reserves_sms_any_more_new_models_have_all_of_them(gpu: Gpu) -> None:
    urgent = gpu.load(parameter("reserved_sms", "16"))
    streams = [urgent.stream() for _ in range(3)]
    patient = gpu.load()
    kept = patient.stream()
    for stream in streams:
        urgent.release_stream(stream)
    assert part(gpu.load().stream()) == WHOLE
    patient.release_stream(kept)
    # The same streams again: cuBLAS has workspaces for them.
    again = gpu.load(parameter("reserved_sms", "16")).stream()
    assert again in streams
    assert gpu.load().stream() is kept
    assert gpu.driver.divisions == [(0, 16)]


def test_the_servers_setting_confines_models_whatever_their_order(gpu: Gpu) -> None:
    patient = gpu.load(server="16")
    assert part(patient.stream()) == REST
    with capture_logs() as lines:
        urgent = gpu.load(parameter("reserved_sms", "16"), server="16")
    assert not lines
    stream = urgent.stream()
    assert part(stream) == RESERVED
    urgent.release_stream(stream)
    assert part(gpu.load(server="16").stream()) == REST


def test_models_that_were_loaded_before_are_named_as_not_confined(gpu: Gpu) -> None:
    early = gpu.load()
    early.stream()
    with capture_logs() as lines:
        gpu.load(parameter("reserved_sms", "16"))
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert "models that were loaded before use the reserved SMs, too" in warning["event"]
    assert warning["streams"] == 1


def test_a_failed_load_gives_its_streams_back(gpu: Gpu) -> None:
    urgent = gpu.load(parameter("reserved_sms", "16"))
    taken = {urgent.stream().cuda_stream for _ in range(3)}
    urgent.release_streams()
    urgent.release_streams()
    again = gpu.load(parameter("reserved_sms", "16"))
    assert {again.stream().cuda_stream for _ in range(3)} == taken


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("12", "a multiple of 8 from 8 to 120: the GPU has 132 SMs, and the other models need 8 of them at least"),
        ("132", "a multiple of 8 from 8 to 120"),
        ("many", "an integer >= 0"),
        ("-8", "an integer >= 0"),
    ],
)
def test_wrong_counts_are_rejected(gpu: Gpu, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        gpu.load(parameter("reserved_sms", value))
    assert rejected.value.key == 'parameters["reserved_sms"]'
    assert message in rejected.value.expected
    assert part(gpu.load().stream()) == WHOLE


def test_a_gpu_is_divided_once(gpu: Gpu) -> None:
    gpu.load(parameter("reserved_sms", "16"))
    with pytest.raises(ConfigError, match="expected 16, as GPU 0 has been divided so until the server is restarted"):
        gpu.load(parameter("reserved_sms", "24"))


def test_a_driver_that_cannot_divide_is_named(gpu: Gpu) -> None:
    def none() -> GreenDriver:
        raise CudaError("libcuda.so.1", "the driver is too old, CUDA 12.5 is needed: cuGreenCtxCreate")

    gpu.partitions = SmPartitions(gpu.shelf, none)
    with pytest.raises(ConfigError, match=r"cannot divide SMs \(libcuda.*too old.*\): remove it, or update the driver"):
        gpu.load(parameter("reserved_sms", "16"))


def test_a_process_of_its_own_cannot_reserve_sms() -> None:
    config = BATCHED + parameter("reserved_sms", "16") + parameter("isolation", "process")
    with pytest.raises(ConfigError, match=r'isolation.*"thread" for a model with reserved_sms'):
        load(context_of(config))
