"""Loads onto a device that fail, at each stage: no memory stays reserved, no stream taken. Devices that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from host_models import BATCHED, Affine, context_of, loaded, request

from isochrone.devices import losses
from isochrone.errors import IsochroneError, ModelFailed, Unavailable
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.torch.files import LoadedFile
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from isochrone.worker.backends.torch.gpu.loading import load_on_device, room_for_weights
from isochrone.worker.backends.torch.gpu.settings import gpu_settings

NO_GRAPHS = BATCHED + "optimization { cuda { graphs: false } }"
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` to …"


@pytest.fixture(autouse=True)
def _no_loss() -> Iterator[None]:
    yield
    losses.forget()


class Counting(HostDevice):
    """Counts streams and calls that free memory; fails at the n-th call of a method."""

    name = "cpu:0"

    def __init__(self, fails: str = "", at: int = 1, error: Exception | None = None) -> None:
        super().__init__(torch)
        self.streams: list[object] = []
        self.freed = 0
        self._fails, self._left = fails, at
        self._error = error or RuntimeError("no such luck")

    def _may_fail(self, method: str) -> None:
        if method == self._fails:
            self._left -= 1
            if self._left == 0:
                raise self._error

    def stream(self) -> Any:
        self._may_fail("stream")
        self.streams.append(object())
        return self.streams[-1]

    def release_stream(self, stream: Any) -> None:
        self.streams.remove(stream)

    def release_streams(self) -> None:
        self.streams.clear()

    def device_bytes(self, size: int) -> Any:
        self._may_fail("device_bytes")
        return super().device_bytes(size)

    def host_bytes(self, size: int, pinned: bool) -> Any:
        self._may_fail("host_bytes")
        return super().host_bytes(size, pinned)

    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        self._may_fail("capture")
        return super().capture(run, stream, pool, warm_runs)

    def free_cached(self) -> None:
        self._may_fail("free_cached")
        self.freed += 1


def load_with(device: HostDevice, move: Any = None, config: str = BATCHED) -> GpuExecutable:
    module = Affine()
    context = context_of(config, "failing")
    file = LoadedFile(module, ["x"], [], move or (lambda name: module))
    made = load_on_device(context, torch, file, (["x"], []), device, gpu_settings(context), 0)
    assert isinstance(made, GpuExecutable)
    return made


def assert_nothing_left(device: Counting) -> None:
    assert not list(ledger_of(device.name))
    assert not device.streams
    assert device.freed


@pytest.mark.parametrize(
    ("fails", "at"),
    [
        ("weights", 1),
        ("stream", 1),
        ("stream", 3),
        ("host_bytes", 1),
        ("device_bytes", 2),
        ("device_bytes", 12),
    ],
)
@pytest.mark.parametrize("is_memory", [True, False])
def test_a_load_that_fails_leaves_nothing(fails: str, at: int, is_memory: bool) -> None:
    text = "CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has …"
    error = torch.OutOfMemoryError(text) if is_memory else RuntimeError("no such luck")
    device = Counting(fails, at, error)

    def fail(name: str) -> Any:
        raise error

    expected: Any = Unavailable if is_memory else RuntimeError
    message = r"model 'failing' version 1 instance 0 does not fit on cpu:0: CUDA out of memory" if is_memory else "luck"
    with pytest.raises(expected, match=message):
        load_with(device, fail if fails == "weights" else None)
    assert_nothing_left(device)
    # The next load has all of it.
    executable = load_with(Counting())
    assert ledger_of("cpu:0").held(Account("failing", "1", 0))[Holding.SLOTS] > 0
    executable.close()
    assert not list(ledger_of("cpu:0"))


@pytest.mark.parametrize("at", [1, 2, 7])
def test_memory_that_is_missing_in_a_capture_leaves_nothing(at: int) -> None:
    device = Counting("capture", at, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"))
    with pytest.raises(Unavailable, match="needs more memory than is there"):
        load_with(device)
    assert_nothing_left(device)


def test_a_model_that_cannot_be_captured_comes_and_goes_without_a_trace() -> None:
    for _ in range(3):
        device = Counting("capture", 1, RuntimeError("CUDA error: operation not permitted when stream is capturing"))
        executable = load_with(device)
        assert ledger_of(device.name).held(Account("failing", "1", 0))[Holding.GRAPHS] == 0
        executable.execute({"x": np.ones((1, 3), np.float32)}, None)
        executable.close()
        assert_nothing_left(device)


@pytest.mark.parametrize("fails", ["capture", "device_bytes"])
def test_a_device_that_is_lost_by_a_load_is_recorded(fails: str) -> None:
    """It does not become a model that runs without graphs."""
    device = Counting(fails, 1, RuntimeError(ILLEGAL))
    with pytest.raises(DeviceLost, match=r"instance 0: CUDA error: an illegal memory access was encountered"):
        load_with(device)
    assert losses.is_lost()
    assert_nothing_left(device)


def test_a_load_whose_cleaning_fails_too_reserves_nothing() -> None:
    class Lost(Counting):
        def free_cached(self) -> None:
            raise RuntimeError(ILLEGAL)

    device = Lost("capture", 1, RuntimeError(ILLEGAL))
    with pytest.raises(DeviceLost):
        load_with(device)
    assert not list(ledger_of(device.name))


class LosableDevice(Counting):
    """Its work fails from the moment at which it is lost, as every call does then."""

    is_lost = False

    def event(self) -> Any:
        device = self

        class Event:
            def record(self, stream: Any = None) -> None: ...

            def synchronize(self) -> None:
                device.check()

        return Event()

    def check(self) -> None:
        if self.is_lost:
            raise RuntimeError(ILLEGAL)

    def wait(self, stream: Any, event: Any) -> None:
        self.check()

    def synchronize(self, stream: Any) -> None:
        self.check()

    def free_cached(self) -> None:
        self.check()
        super().free_cached()


def test_a_device_that_is_lost_fails_every_batch_in_flight_and_frees_their_slots() -> None:
    device = LosableDevice()
    executable = load_with(device)
    array = np.ones((1, 3), np.float32)
    flights = [executable.launch_batch([request(array)], 1) for _ in range(3)]
    device.is_lost = True
    for flight in flights:
        with pytest.raises(DeviceLost, match="an illegal memory access was encountered"):
            executable.collect_batch(flight)
    assert losses.is_lost()
    # All slots are free: nobody waits for one that never comes back.
    for _ in range(4):
        with pytest.raises(DeviceLost):
            executable.collect_batch(executable.launch_batch([request(array)], 1))
    # Nothing can be freed there; what is reserved is forgotten.
    with contextlib.suppress(RuntimeError):
        executable.close()
    assert not list(ledger_of(device.name))


def test_a_load_that_captures_is_counted_once() -> None:
    """What it has allocated shows in the device's figures by then."""
    pending: list[int] = []

    class Watched(Counting):
        name = "cpu:2"

        def device_bytes(self, size: int) -> Any:
            pending.append(sum(each.pending for each in ledger_of(self.name)._reservations))
            return super().device_bytes(size)

        def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
            pending.append(sum(each.pending for each in ledger_of(self.name)._reservations))
            return super().capture(run, stream, pool, warm_runs)

    executable = load_with(Watched())
    held = ledger_of("cpu:2").held(Account("failing", "1", 0))
    assert set(pending) == {held[Holding.SLOTS], 0}
    assert pending[0] == held[Holding.SLOTS]
    assert pending[-1] == 0
    executable.close()


def test_several_instances_of_a_model_are_accounted_each() -> None:
    first, second = (loaded(NO_GRAPHS, name="twice", instance=number) for number in range(2))
    holdings = [ledger_of("cpu").held(Account("twice", "1", number)) for number in range(2)]
    assert holdings[0] == holdings[1]
    assert holdings[0][Holding.WEIGHTS] == 4 * (3 * 2 + 2)
    first.close()
    assert ledger_of("cpu").held(Account("twice", "1", 0)) == {}
    assert ledger_of("cpu").held(Account("twice", "1", 1)) == holdings[1]
    np.testing.assert_allclose(second.execute({"x": np.ones((2, 3), np.float32)}, None)["total"], [[3], [3]])
    second.close()


def test_constants_of_a_program_are_weights() -> None:
    context = context_of(NO_GRAPHS, "constants")
    module = Affine()
    file = LoadedFile(module, ["x"], [], module.to, constant_bytes=100)
    executable = load_on_device(context, torch, file, (["x"], []), HostDevice(torch), gpu_settings(context), 0)
    assert ledger_of("cpu").held(Account("constants", "1", 0))[Holding.WEIGHTS] == 4 * (3 * 2 + 2) + 100
    executable.close()


class Package:
    """As torch loads one: a function of tensors. It frees its memory when it goes."""

    living = 0

    def __init__(self, fails: bool = False) -> None:
        Package.living += 1
        self._fails = fails

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._fails:
            raise ModelFailed("this package")
        return x[:, :2], x.sum(1, keepdim=True)

    def __del__(self) -> None:
        Package.living -= 1


def test_a_package_holds_what_its_file_holds() -> None:
    context = context_of(NO_GRAPHS, "package")
    file = LoadedFile(Package(), ["x"], [], None)
    device = Counting()
    executable = load_on_device(context, torch, file, (["x"], []), device, gpu_settings(context), 12345)
    assert ledger_of(device.name).held(Account("package", "1", 0))[Holding.WEIGHTS] == 12345
    del file
    executable.close()
    assert not list(ledger_of(device.name))
    assert Package.living == 0


def test_a_package_whose_load_fails_is_freed_while_its_error_is_reported() -> None:
    context = context_of(BATCHED, "package")
    file = LoadedFile(Package(fails=True), ["x"], [], None)
    device = Counting()
    with pytest.raises(IsochroneError, match="this package"):
        load_on_device(context, torch, file, (["x"], []), device, gpu_settings(context), 12345)
    assert Package.living == 0
    assert_nothing_left(device)


class SmallDevice(Counting):
    name = "cpu:1"

    def memory(self) -> tuple[int, int]:
        return 300 << 20, 400 << 20


def test_a_package_that_does_not_fit_is_refused_before_it_is_loaded() -> None:
    context = context_of(BATCHED, "package")
    room = room_for_weights(context, SmallDevice(), 100 << 20)
    figures = r"needs 100 MiB \(weights 100 MiB\) and 256 MiB to spare, 300 MiB of 400"
    with pytest.raises(Unavailable, match=figures), room:
        pytest.fail("it was loaded")
    with room_for_weights(context, SmallDevice(), 10 << 20):
        assert ledger_of("cpu:1").held(Account("package", "1", 0)) == {Holding.WEIGHTS: 10 << 20}
    assert not list(ledger_of("cpu:1"))


def test_a_package_for_which_memory_is_missing_is_refused() -> None:
    context = context_of(BATCHED, "package")
    room = room_for_weights(context, SmallDevice(), 1)
    with pytest.raises(Unavailable, match="does not fit on cpu:1: CUDA error: out of memory"), room:
        raise RuntimeError("CUDA error: out of memory. …")
    with pytest.raises(ZeroDivisionError), room_for_weights(context, SmallDevice(), 1):
        raise ZeroDivisionError
    assert not list(ledger_of("cpu:1"))
