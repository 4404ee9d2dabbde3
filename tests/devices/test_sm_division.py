"""The division of a GPU's multiprocessors: the plan, and the calls of the driver that carry it out."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.devices.cuda.interface import CudaError
from isochrone.devices.green_contexts import GreenContexts, GreenLibrary
from isochrone.devices.sm_plan import SmDivision, SmLimits, limits_of, plan_division

H200 = SmLimits(132, 8, 8)


@given(st.integers(1, 200), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 8]), st.integers(-8, 220))
def test_a_division_has_all_sms_in_parts_that_the_driver_can_make(
    total: int, minimum: int, step: int, reserved: int
) -> None:
    limits = SmLimits(total, minimum, step)
    if reserved % step or reserved < max(1, minimum) or total - reserved < minimum:
        with pytest.raises(ValueError, match="SMs"):
            plan_division(limits, reserved)
        return
    found = plan_division(limits, reserved)
    assert found.reserved == reserved
    assert found.reserved + found.rest == total


@pytest.mark.parametrize("reserved", [0, 4, 12, 128, 132, 1000])
def test_impossible_counts_are_rejected_with_those_that_are_possible(reserved: int) -> None:
    with pytest.raises(ValueError, match=r"^a multiple of 8 from 8 to 120: the GPU has 132 SMs, and the other models"):
        plan_division(H200, reserved)


def test_a_gpu_that_is_too_small_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="a GPU that can be divided: this one has 14 SMs, and a part 8"):
        plan_division(SmLimits(14, 8, 8), 8)


def test_drivers_that_do_not_give_the_step_have_that_of_their_architecture() -> None:
    assert limits_of(132, 0, 0, 9) == SmLimits(132, 8, 8)
    assert limits_of(108, 0, 0, 8) == SmLimits(108, 4, 2)
    assert limits_of(148, 2, 4, 10) == SmLimits(148, 2, 4)


class Library:
    """libcuda with one H200. ``results``: what a function returns instead of success; ``missing``: not in it."""

    def __init__(self, version: int = 13020) -> None:
        self.version = version
        self.results: dict[str, int] = {}
        self.missing: set[str] = set()
        self.contexts: dict[int, int] = {}
        self.described: list[int] = []
        self.rounds_to = 0
        self.streams: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(f"libcuda.so.1: undefined symbol: {name}")

        def function(*arguments: Any) -> int:
            if name in self.results:
                return self.results[name]
            values = [getattr(each, "_obj", each) for each in arguments]
            getattr(self, "_" + name, lambda *_: None)(*values)
            return 0

        setattr(self, name, function)
        return function

    def _cuDriverGetVersion(self, version: Any) -> None:
        version.value = self.version

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:
        assert attribute == 75
        value.value = 9

    def _cuGetErrorName(self, number: int, text: Any) -> None:
        text.value = b"CUDA_ERROR_NOT_SUPPORTED"

    def _cuDeviceGetDevResource(self, device: int, resource: Any, kind: int) -> None:
        assert ctypes.sizeof(resource) == 144
        resource.kind, resource.count = kind, 132
        if self.version >= 13000:
            resource.minimum, resource.step = 8, 8

    def _cuDevSmResourceSplitByCount(
        self, group: Any, groups: Any, whole: Any, rest: Any, flags: int, count: int
    ) -> None:
        assert (groups.value, whole.count, flags) == (1, 132, 0)
        group.count = self.rounds_to or count
        rest.count = whole.count - group.count

    def _cuDevResourceGenerateDesc(self, description: Any, resource: Any, number: int) -> None:
        self.described.append(resource.count)
        description.value = 0x100 + resource.count

    def _cuGreenCtxCreate(self, context: Any, description: Any, device: int, flags: int) -> None:
        assert flags == 1
        context.value = 0x1000 + description.value
        self.contexts[context.value] = self.described[-1]

    def _cuGreenCtxStreamCreate(self, stream: Any, context: int, flags: int, priority: int) -> None:
        self.streams.append((context, flags, priority))
        stream.value = 0x9000 + len(self.streams)


@pytest.mark.parametrize("version", [12060, 13020])
def test_the_driver_divides_the_device_once_into_two_contexts(version: int) -> None:
    library = Library(version)
    driver = GreenLibrary(library)
    assert driver.limits(0) == H200
    contexts = driver.divide(0, 16)
    assert contexts == GreenContexts(contexts.reserved, contexts.rest, SmDivision(16, 116))
    assert library.contexts == {contexts.reserved: 16, contexts.rest: 116}
    handles = [driver.new_stream(context) for context in (contexts.reserved, contexts.reserved, contexts.rest)]
    assert len(set(handles)) == 3
    # Streams that do not wait for the default stream.
    assert library.streams == [(contexts.reserved, 1, 0), (contexts.reserved, 1, 0), (contexts.rest, 1, 0)]


def test_a_count_that_the_driver_rounds_is_an_error() -> None:
    library = Library()
    library.rounds_to = 24
    with pytest.raises(CudaError, match="asked for 16 SMs, given 24 and 108"):
        GreenLibrary(library).divide(0, 16)


def test_what_the_driver_cannot_do_is_named() -> None:
    library = Library()
    library.missing.add("cuGreenCtxStreamCreate")
    with pytest.raises(CudaError, match=r"the driver is too old, CUDA 12\.5 is needed: cuGreenCtxStreamCreate"):
        GreenLibrary(library)
    refusing = Library()
    refusing.results["cuGreenCtxCreate"] = 801
    with pytest.raises(CudaError, match="cuGreenCtxCreate: CUDA_ERROR_NOT_SUPPORTED"):
        GreenLibrary(refusing).divide(0, 16)
