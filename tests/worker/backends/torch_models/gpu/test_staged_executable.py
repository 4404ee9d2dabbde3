"""The way of a batch through slots and graphs, on the CPU: everything but the GPU itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from host_models import BATCHED, Affine, context_of, loaded, request
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.devices import losses
from isochrone.devices.device_array import DeviceArray
from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, ModelFailed, Unavailable
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.loading import gpu_of
from isochrone.worker.backends.torch.gpu.settings import gpu_settings


def expected(module: Affine, array: Any) -> Any:
    with torch.inference_mode():
        return module.layer(torch.from_numpy(np.array(array))).numpy()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.integers(0, 2**32 - 1))
def test_requests_get_their_own_rows_whatever_they_ran_with(rows_of: list[int], graphs: bool, seed: int) -> None:
    if sum(rows_of) > 8:
        rows_of = rows_of[:1]
    module = Affine()
    executable = loaded(BATCHED + ("" if graphs else "optimization { cuda { graphs: false } }"), module)
    generator = np.random.default_rng(seed)
    arrays = [generator.standard_normal((rows, 3), dtype=np.float32) for rows in rows_of]
    results = executable.collect_batch(executable.launch_batch([request(array) for array in arrays], sum(rows_of)))
    assert len(results) == len(arrays)
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_allclose(result["y"], expected(module, array), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result["total"], array.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    executable.close()


def test_a_batch_is_padded_with_zeros_and_the_padding_is_counted() -> None:
    module = Affine()
    executable = loaded(module=module)
    full = np.full((8, 3), np.nan, np.float32)
    executable.execute({"x": full}, None)
    module.rows.clear()
    result = executable.execute({"x": np.ones((5, 3), np.float32)}, None)
    assert module.rows == [8]
    assert np.isfinite(result["y"]).all()
    assert result["y"].shape == (5, 2)
    assert executable.padded_rows == 3
    executable.close()


def test_without_graphs_nothing_is_padded() -> None:
    module = Affine()
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", module)
    module.rows.clear()
    executable.execute({"x": np.ones((5, 3), np.float32)}, None)
    assert (module.rows, executable.padded_rows) == ([5], 0)
    executable.close()


def test_answers_do_not_share_memory_with_later_ones() -> None:
    executable = loaded()
    first = executable.execute({"x": np.ones((2, 3), np.float32)}, None)
    kept = first["y"].copy()
    for _ in range(4):
        executable.execute({"x": np.zeros((2, 3), np.float32)}, None)
    np.testing.assert_array_equal(first["y"], kept)
    executable.close()


def test_only_the_requested_outputs_are_returned() -> None:
    executable = loaded()
    array = np.ones((1, 3), np.float32)
    batch = executable.launch_batch([request(array, ("total",)), request(array), request(array, ("y",))], 3)
    assert [sorted(result) for result in executable.collect_batch(batch)] == [["total"], ["total", "y"], ["y"]]
    executable.close()


def test_inputs_on_a_device_are_gathered_there() -> None:
    module = Affine()
    executable = loaded(module=module)
    arrays = [np.full((rows, 3), rows, np.float32) for rows in (1, 2, 3)]
    mixed = [
        request(DeviceArray(torch.from_numpy(arrays[0]))),
        request(arrays[1]),
        request(DeviceArray(torch.from_numpy(arrays[2]))),
    ]
    results = executable.collect_batch(executable.launch_batch(mixed, 6))
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_allclose(result["y"], expected(module, array), rtol=1e-5)
    executable.close()


def test_bfloat16_on_the_host_and_on_a_device_share_a_batch() -> None:
    text = """max_batch_size: 8
    input { name: "x" data_type: TYPE_BF16 dims: [ 3 ] }
    output { name: "y" data_type: TYPE_BF16 dims: [ 3 ] }"""

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    executable = loaded(text, Twice())
    here = np.full((2, 3), 1.5, ml_dtypes.bfloat16)
    here.flags.writeable = False  # as in a message
    there = torch.full((1, 3), 2.5, dtype=torch.bfloat16)
    first, second = executable.collect_batch(executable.launch_batch([request(here), request(DeviceArray(there))], 3))
    np.testing.assert_array_equal(first["y"], np.full((2, 3), 3, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(second["y"], np.full((1, 3), 5, ml_dtypes.bfloat16))
    executable.close()


def test_outputs_are_written_to_the_memory_that_callers_named() -> None:
    module = Affine()
    executable = loaded(module=module)
    arrays = [np.full((rows, 3), rows, np.float32) for rows in (1, 2)]
    memory = torch.zeros((2, 2))
    target = DeviceArray(memory)
    requests = [
        request(DeviceArray(torch.from_numpy(arrays[0]))),
        request(DeviceArray(torch.from_numpy(arrays[1])), ("y",), {"y": target}),
    ]
    first, second = executable.collect_batch(executable.launch_batch(requests, 3))
    np.testing.assert_allclose(first["y"], expected(module, arrays[0]), rtol=1e-5)
    assert first["total"].item() == 3
    assert second == {"y": target}
    np.testing.assert_allclose(memory.numpy(), expected(module, arrays[1]), rtol=1e-5)
    alone = [request(DeviceArray(torch.from_numpy(arrays[1])), ("y",), {"y": target})]
    memory.zero_()
    assert executable.collect_batch(executable.launch_batch(alone, 2)) == [{"y": target}]
    np.testing.assert_allclose(memory.numpy(), expected(module, arrays[1]), rtol=1e-5)
    executable.close()


def test_without_the_overlap_inputs_come_from_the_host() -> None:
    for value, takes in (("true", True), ("false", False)):
        executable = loaded(BATCHED + f'parameters {{ key: "overlap" value {{ string_value: "{value}" }} }}')
        assert (executable.overlaps, executable.takes_device_arrays) == (takes, takes)
        executable.close()


def test_only_results_that_somebody_wants_on_the_host_are_copied_there() -> None:
    module = Affine()
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", module)
    array = np.full((1, 3), 2, np.float32)
    there = DeviceArray(torch.from_numpy(array))
    memory = torch.zeros((1, 2))
    target = {"y": DeviceArray(memory)}
    for requests, copied in (
        ([request(array, ("total",)), request(array, ("total",))], ["total"]),
        ([request(array, ("total",)), request(array)], ["total", "y"]),
        ([request(there, None, target), request(there, ("total",))], ["total"]),
        ([request(there, ("y",), target)], []),
        ([request(there, ("y",), target), request(array, ("y",))], ["y"]),
    ):
        memory.zero_()
        flight = executable.launch_batch(requests, len(requests))
        assert sorted(flight.arrays) == copied
        for each, result in zip(requests, executable.collect_batch(flight), strict=True):
            assert sorted(result) == sorted(each.plan.outputs or ("y", "total"))
            if "total" in result:
                assert result["total"].item() == 6
            if "y" in result:
                y = memory.numpy() if isinstance(result["y"], DeviceArray) else result["y"]
                np.testing.assert_allclose(y, expected(module, array), rtol=1e-5)
    executable.close()


def test_a_model_computes_in_another_type_than_its_callers_send() -> None:
    text = BATCHED + 'parameters { key: "dtype" value { string_value: "bf16" } }'
    executable = loaded(text)
    result = executable.execute({"x": np.ones((2, 3), np.float32)}, None)
    assert result["y"].dtype == np.float32
    assert executable.graphs is not None
    assert executable.graphs.graph_for(2, (("x", (3,)),)).inputs["x"].dtype == torch.bfloat16  # type: ignore[union-attr]
    executable.close()


def test_large_copies_take_the_way_of_their_own_streams() -> None:
    text = """max_batch_size: 2
    input { name: "x" data_type: TYPE_FP32 dims: [ 100000 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ 100000 ] }"""

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    for extra in ("", "optimization { cuda { graphs: true output_copy_stream: true } }"):
        executable = loaded(text + extra, Twice())
        array = np.random.default_rng(0).standard_normal((2, 100000), dtype=np.float32)
        np.testing.assert_array_equal(executable.execute({"x": array}, None)["y"], array * 2)
        executable.close()


def test_a_model_with_free_dimensions_runs_any_shape() -> None:
    text = """max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }"""

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    executable = loaded(text, Twice())
    for width in (1, 7, 300):
        array = np.ones((3, width), np.float32)
        np.testing.assert_array_equal(executable.execute({"x": array}, None)["y"], array * 2)
    executable.close()


class Raising(Affine):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if (x == 13).any():
            raise RuntimeError("thirteen")
        return super().forward(x)


def test_a_run_that_fails_gives_its_slot_back() -> None:
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", Raising())
    bad = np.full((1, 3), 13, np.float32)
    for _ in range(5):
        with pytest.raises(ModelFailed, match="model 'm' version 1: torch: thirteen"):
            executable.execute({"x": bad}, None)
    executable.execute({"x": np.ones((1, 3), np.float32)}, None)
    executable.close()


class NumberedStreams(HostDevice):
    """Records which streams were waited for."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.streams: list[int] = []
        self.waited: list[int] = []

    def stream(self) -> Any:
        self.streams.append(len(self.streams))
        return self.streams[-1]

    def synchronize(self, stream: Any) -> None:
        self.waited.append(stream)
        raise RuntimeError("the same error again")


def test_a_launch_that_fails_waits_for_all_streams_of_its_instance_and_no_others() -> None:
    device = NumberedStreams()
    others = loaded(BATCHED, device=device, name="others")
    before = len(device.streams)
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", Raising(), device)
    with pytest.raises(ModelFailed, match="thirteen"):
        executable.launch_batch([request(np.full((1, 3), 13, np.float32))], 1)
    assert sorted(device.waited) == device.streams[before:]
    executable.close()
    others.close()


class LateDevice(HostDevice):
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.gate = threading.Event()
        self.gate.set()

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream=None: None, synchronize=self.gate.wait)

    def wait(self, stream: Any, event: Any) -> None: ...


def test_three_batches_are_under_way_and_a_fourth_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    device = LateDevice()
    executable = loaded(device=device)
    device.gate.clear()
    arrays = [np.full((1, 3), number, np.float32) for number in range(4)]
    flights = [executable.launch_batch([request(array)], 1) for array in arrays[:3]]
    ring, wait = executable._ring, executable._changed.wait
    assert ring.in_flight == len(ring) == 3
    assert ring.acquire() is None
    waits = threading.Event()
    monkeypatch.setattr(executable._changed, "wait", lambda: (waits.set(), wait()))
    launched: list[Any] = []
    fourth = threading.Thread(target=lambda: launched.append(executable.launch_batch([request(arrays[3])], 1)))
    fourth.start()
    assert waits.wait(60)
    # Until a slot is free it stays where it waits, with the lock released.
    with executable._changed:
        assert ring.acquire() is None
        assert not launched
    device.gate.set()
    totals = [executable.collect_batch(flights[0])[0]["total"].item()]
    fourth.join()
    assert launched[0].slot == flights[0].slot
    assert ring.in_flight == 3
    totals += [executable.collect_batch(flight)[0]["total"].item() for flight in [*flights[1:], *launched]]
    assert totals == [0, 3, 6, 9]
    executable.close()


class CountedEvents(HostDevice):
    """Work that ends when the test says so, and a count of the waits for it."""

    def __init__(self) -> None:
        super().__init__(torch)
        self.ended = False
        self.waits = 0

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream=None: None, query=lambda: self.ended, synchronize=self._wait)

    def _wait(self) -> None:
        self.waits += 1

    def wait(self, stream: Any, event: Any) -> None: ...


def test_a_batch_that_was_seen_to_end_is_not_waited_for() -> None:
    device = CountedEvents()
    executable = loaded(device=device)
    for polls, ended, waits in ((2, False, 1), (0, True, 1), (1, True, 0)):
        device.ended, device.waits = ended, 0
        flight = executable.launch_batch([request(np.ones((1, 3), np.float32))], 1)
        assert [executable.batch_is_complete(flight) for _ in range(polls)] == [ended] * polls
        assert executable.collect_batch(flight)[0]["total"].item() == 3
        assert device.waits == waits
    executable.close()


class SmallDevice(HostDevice):
    name = "small:0"

    def memory(self) -> tuple[int, int]:
        return 300 << 20, 400 << 20


def test_a_model_that_does_not_fit_is_refused_with_figures() -> None:
    module = Affine()
    module.register_buffer("large", torch.empty(100 << 20, dtype=torch.uint8))
    with pytest.raises(
        Unavailable, match=r"does not fit on small:0: it needs 100 MiB .weights 100 MiB.*300 MiB of 400"
    ):
        loaded(module=module, device=SmallDevice(torch), name="large")
    assert not list(ledger_of("small:0"))


def test_the_ledger_knows_an_instance_until_it_is_closed() -> None:
    executable = loaded(name="accounted")
    account = Account("accounted", "1", 0)
    held = ledger_of("cpu").held(account)
    assert held[Holding.WEIGHTS] == 4 * (3 * 2 + 2)
    assert held[Holding.SLOTS] == 4 * 8 * 4 * (3 + 2 + 1)
    executable.close()
    assert ledger_of("cpu").held(account) == {}


class NoGraphs(HostDevice):
    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")


def test_a_model_that_synchronises_runs_without_graphs_unless_they_are_required() -> None:
    executable = loaded(device=NoGraphs(torch))
    assert executable.graphs is not None
    assert not len(executable.graphs)
    executable.execute({"x": np.ones((1, 3), np.float32)}, None)
    executable.close()
    with pytest.raises(
        ConfigError, match=r"optimization\.cuda\.graphs: expected false, or a model that can be captured"
    ):
        loaded(BATCHED + "optimization { cuda { graphs: true } }", device=NoGraphs(torch), name="required")
    assert ledger_of("cpu").held(Account("required", "1", 0)) == {}


class Exhausted(HostDevice):
    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


def test_memory_that_is_missing_for_the_largest_batch_refuses_the_model() -> None:
    with pytest.raises(Unavailable, match=r"a batch of 8 rows needs more memory than is there.*lower max_batch_size"):
        loaded(device=Exhausted(torch), name="exhausted")
    assert ledger_of("cpu").held(Account("exhausted", "1", 0)) == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('parameters { key: "graph_batch_sizes" value { string_value: "1,9" } }', "batch sizes from 1 to 8"),
        ('parameters { key: "graph_batch_sizes" value { string_value: "one" } }', "batch sizes from 1 to 8"),
        ('parameters { key: "dtype" value { string_value: "int4" } }', "dtype"),
        ('parameters { key: "compile" value { string_value: "fast" } }', "compile"),
    ],
)
def test_wrong_settings_are_named(lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gpu_settings(context_of(BATCHED + lines))


def test_graphs_need_fixed_shapes() -> None:
    text = BATCHED.replace("dims: [ 3 ]", "dims: [ -1 ]") + "optimization { cuda { graphs: true } }"
    with pytest.raises(ConfigError, match="input dims without -1, or a graph_spec that fixes them"):
        loaded(text)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    blind: Any = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False, device_count=lambda: 0))
    group = "instance_group { kind: KIND_GPU count: 1 gpus: [ 0 ] }"
    with pytest.raises(ConfigError, match=r"instance_group\.kind: expected a GPU that torch can use, but .* KIND_CPU"):
        gpu_of(context_of(BATCHED + group), blind)


def test_automatic_is_the_first_gpu_where_there_is_one() -> None:
    context = context_of(BATCHED)
    for there, expected_gpu in ((True, 0), (False, None)):
        given: Any = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda found=there: found))
        assert gpu_of(replace(context, gpu=None), given) == expected_gpu


class Lost(HostDevice):
    """A device whose work fails for good."""

    def event(self) -> Any:
        def fail() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

        return SimpleNamespace(record=lambda stream=None: None, synchronize=fail)

    def wait(self, stream: Any, event: Any) -> None: ...


def test_a_lost_device_is_recorded_for_whoever_watches_the_process() -> None:
    executable = loaded(device=Lost(torch), name="lost")
    try:
        assert not losses.is_lost()
        with pytest.raises(DeviceLost, match="an illegal memory access was encountered"):
            executable.execute({"x": np.ones((1, 3), np.float32)}, None)
        assert losses.is_lost()
    finally:
        losses.forget()
        executable.close()


def test_nothing_of_a_lost_device_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would end the process."""
    executable = loaded(device=HostDevice(torch), name="lost")
    slots, graphs = executable.slots, executable.graphs
    kept: list[object] = []
    monkeypatch.setattr(losses, "keep", lambda *objects: kept.extend(objects))
    losses.record("cuda:7", "not this one")
    try:
        losses.record(HostDevice(torch).name, "CUDA error: an illegal memory access was encountered")
        executable.close()
    finally:
        losses.forget()
    assert any(each is slots for each in kept)
    assert graphs is not None
    assert any(each is graphs for each in kept)
    assert slots[0].inputs
    assert list(ledger_of(HostDevice(torch).name)) == []


def test_a_failed_batch_is_retried_while_others_are_under_way() -> None:
    """The retry runs on the thread that collects, while the other one launches what follows."""
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", Raising())
    arrays = [np.full((1, 3), value, np.float32) for value in (1, 13, 3, 4)]
    with pytest.raises(ModelFailed):
        executable.launch_batch([request(array) for array in arrays], 4)
    behind = [executable.launch_batch([request(np.full((1, 3), 9, np.float32))], 1) for _ in range(3)]
    for array in arrays:
        if array[0, 0] == 13:
            with pytest.raises(ModelFailed):
                executable.execute({"x": array}, None)
        else:
            assert executable.execute({"x": array}, None)["total"].item() == 3 * array[0, 0]
    assert [executable.collect_batch(flight)[0]["total"].item() for flight in behind] == [27, 27, 27]
    executable.close()


class OneRow(Affine):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, total = super().forward(x)
        return y[:1], total


class NoRows(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :2], x.sum()


@pytest.mark.parametrize("graphs", ["", "optimization { cuda { graphs: true } }"])
def test_a_result_without_rows_is_not_blamed_on_the_capture(graphs: str) -> None:
    with pytest.raises(ModelFailed, match=r"output 'total': expected 8 rows, one for each given, given \[\]"):
        loaded(BATCHED + graphs, NoRows())


def test_a_model_that_returns_too_few_rows_is_refused() -> None:
    with pytest.raises(ModelFailed, match="output 'y': expected 8 rows, one for each given, given"):
        loaded(module=OneRow(), name="short")
    executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", OneRow(), name="short")
    with pytest.raises(ModelFailed, match="output 'y': expected 2 rows, one for each given, given"):
        executable.execute({"x": np.ones((2, 3), np.float32)}, None)
    executable.close()


class TwiceTheRows(Affine):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, total = super().forward(x)
        return y, torch.cat([total, total])


def test_wrong_rows_are_never_written_to_callers() -> None:
    for module, message in (
        (OneRow(), r"output 'y': expected 2 rows, one for each given, given \[1, 2\]"),
        (TwiceTheRows(), r"output 'total': expected 2 rows, one for each given, given \[4, 1\]"),
    ):
        executable = loaded(BATCHED + "optimization { cuda { graphs: false } }", module)
        memory = {"y": torch.zeros((1, 2)), "total": torch.zeros((1, 1))}
        targets = {name: DeviceArray(tensor) for name, tensor in memory.items()}
        array = DeviceArray(torch.ones((1, 3)))
        with pytest.raises(ModelFailed, match=message):
            executable.launch_batch([request(array, None, targets), request(array, None, targets)], 2)
        assert not any(tensor.any() for tensor in memory.values())
        executable.close()


def test_while_a_model_is_loaded_the_event_loop_launches_nothing() -> None:
    executable = loaded()
    small = request(np.ones((1, 3), np.float32))
    small.plan.shape_key = (("x", (3,)),)
    assert executable.launches_quickly([small], 1)
    with loading():
        assert not executable.launches_quickly([small], 1)
    executable.close()
