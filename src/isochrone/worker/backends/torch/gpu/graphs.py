"""CUDA graphs of one instance: the plan's sizes, captured at load with fixed inputs and outputs.

All graphs of an instance share one pool and one stream, and so never run at the same time. The result of one is
overwritten by the next: whoever replays a graph copies its result out on the same stream.

A small batch has a second graph for every staging slot, which copies its inputs from the slot and its results back to
it. Its launch is then one call: six calls of torch took 190 µs on the thread of an instance that is mostly idle. So the
host gathers its inputs, also those in a caller's pinned memory: to have the GPU copy one of 150 or 300 KB from there,
with launches of its own, took 0.07 to 0.12 ms longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MILLISECOND, now_ns
from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, IsochroneError, Unavailable
from isochrone.worker.backends.devices.errors import device_error
from isochrone.worker.backends.devices.memory_ledger import mebibytes
from isochrone.worker.backends.tensors.result_rows import check_rows
from isochrone.worker.backends.torch.error_text import error_line
from isochrone.worker.backends.torch.gpu.capture_plan import CapturePlan

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor
    from isochrone.worker.backends.torch.gpu.capture_plan import CaptureSize
    from isochrone.worker.backends.torch.gpu.device import Device
    from isochrone.worker.backends.torch.gpu.slots import Slot

log = structlog.get_logger(__name__)

#: A model's call with inputs by name; its results in the order of the declared outputs.
Run = Callable[[Mapping[str, Any]], list[Any]]
MakeInput = Callable[[str, tuple[int, ...]], Any]

#: Copies of at least this size get a stream of their own: they overlap with the compute of other batches.
LARGE_COPY_BYTES = 256 * 1024
#: A batch whose tensors are smaller together is one launch: its copies take no longer than launches of their own.
GRAPH_COPY_BYTES = 1024 * 1024


class SlotGraph:
    """A graph with its copies: from the arrays of one slot, and back to it."""

    __slots__ = ("inputs", "outputs", "replay")

    def __init__(self, inputs: dict[str, Tensor], outputs: dict[str, Tensor], replay: Callable[[], None]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.replay = replay


class CapturedGraph:
    """One graph with its inputs, whose first rows a batch fills, and its results."""

    __slots__ = ("by_slot", "inputs", "replay", "result_bytes", "results", "rows")

    def __init__(self, rows: int, inputs: dict[str, Any], replay: Callable[[], None], results: list[Any]) -> None:
        self.rows = rows
        self.inputs = inputs
        self.replay = replay
        self.results = results
        self.result_bytes = sum(result.numel() * result.element_size() for result in results)
        #: The same with copies, by slot; empty: the tensors are large.
        self.by_slot: list[SlotGraph] = []


class Graphs:
    """The captured graphs of one instance."""

    def __init__(self, plan: CapturePlan, captured: dict[CaptureSize, CapturedGraph], size: int) -> None:
        self._plan = plan
        self._captured = captured
        #: Bytes of the device's memory.
        self.size = size

    def __len__(self) -> int:
        return len(self._captured)

    def graph_for(self, rows: int, dims: Any) -> CapturedGraph | None:
        size = self._plan.graph_for(rows, dims)
        return None if size is None else self._captured[size]

    def clear(self) -> None:
        with loading():
            self._captured.clear()


class GraphCapture:
    """The capture of one instance's graphs."""

    def __init__(
        self,
        device: Device,
        run: Run,
        make_input: MakeInput,
        output_names: Sequence[str],
        slots: Sequence[Slot],
        stream: Any,
        mode: Callable[[], Any],
        prepare: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """``prepare`` is called with the inputs of each size before it is captured: what it raises is not an error of
        the capture."""
        self._device = device
        self._run = run
        self._prepare = prepare
        self._make_input = make_input
        self._output_names = output_names
        self._slots = slots
        self._stream = stream
        self._mode = mode
        self._pool = device.graph_pool()
        self._inputs: dict[Any, dict[str, Any]] = {}

    def capture(
        self, plan: CapturePlan, *, label: str, where: str, required_by: tuple[str, str] | None, budget: int
    ) -> Graphs:
        """Captures a plan, largest graph first.

        ``required_by``: a key and its value in the configuration that ask for graphs, so that a model that cannot be
        captured is an error; None: it runs without them. Memory that is missing for the largest batch is always an
        error: it would be missing for a request.
        """
        device = self._device
        captured: dict[CaptureSize, CapturedGraph] = {}
        before = device.reserved()
        used = 0
        try:
            for size in plan.sizes:
                if budget and captured and used >= budget:
                    log.warning(
                        "graphs use the memory that they may; smaller batches run without",
                        model=label,
                        used=mebibytes(used),
                        budget=mebibytes(budget),
                        rows=size.rows,
                    )
                    plan = plan.without(size)
                    continue
                started = now_ns()
                captured[size] = self._captured(size)
                now_used = self._used(before)
                grown, used = now_used - used, now_used
                log.debug(
                    "graph captured",
                    model=label,
                    rows=size.rows,
                    memory=mebibytes(max(0, grown)),
                    capture_ms=(now_ns() - started) // MILLISECOND,
                )
        except IsochroneError:
            raise
        except Exception as error:
            captured.clear()
            if device_error(error) is not None:
                raise
            if is_out_of_memory(error):
                free, total = device.memory()
                raise Unavailable(
                    f"{label} does not fit on {device.name}: a batch of {size.rows} rows needs more memory than is "
                    f"there, {mebibytes(free)} of {mebibytes(total)} were free when it failed; lower max_batch_size"
                ) from error
            said = error_line(error)
            if required_by is not None:
                key, value = required_by
                expected = (
                    f"{'false' if value == 'true' else 'none'}, or a model that can be captured: one that never waits "
                    "for the device (.item(), .cpu(), nonzero, a size that depends on data)"
                )
                raise ConfigError(where, key, expected, f"{value}; torch: {said}") from error
            log.warning("the model cannot be captured in a graph and runs without", model=label, error=said)
            return Graphs(CapturePlan(()), {}, 0)
        return Graphs(plan, captured, max(0, used))

    def _used(self, before: int) -> int:
        """Bytes that the graphs have taken so far; ``before``: what the process had reserved then."""
        in_pool = self._device.pool_bytes(self._pool)
        if in_pool is None:
            return self._device.reserved() - before
        inputs = (tensor for inputs in self._inputs.values() for tensor in inputs.values())
        return in_pool + sum(int(tensor.numel() * tensor.element_size()) for tensor in inputs)

    def _captured(self, size: CaptureSize) -> CapturedGraph:
        whole = self._inputs.get(size.dims)
        if whole is None:
            whole = self._inputs[size.dims] = {
                name: self._make_input(name, (size.rows, *dims) if size.rows else dims) for name, dims in size.dims
            }
        # Largest first: the smaller graphs read the first rows of the same memory.
        own = {name: tensor[: size.rows] if size.rows else tensor for name, tensor in whole.items()}
        if self._prepare is not None:
            with self._device.on(self._stream):
                self._prepare(own)
        replay, results = self._device.capture(lambda: self._run(own), self._stream, self._pool)
        if size.rows:
            check_rows(zip(self._output_names, results, strict=True), size.rows)
        graph = CapturedGraph(size.rows, own, replay, results)
        copied = graph.result_bytes + sum(tensor.numel() * tensor.element_size() for tensor in own.values())
        if copied < GRAPH_COPY_BYTES:
            graph.by_slot = [self._slot_graph(size, slot, own, results) for slot in self._slots]
        return graph

    def _slot_graph(self, size: CaptureSize, slot: Slot, own: dict[str, Any], results: list[Any]) -> SlotGraph:
        given = {name: slot.inputs[name].views((size.rows, *dims) if size.rows else dims) for name, dims in size.dims}
        taken = {
            name: slot.outputs[name].views(tuple(result.shape))
            for name, result in zip(self._output_names, results, strict=True)
        }

        def run() -> list[Any]:
            with self._mode():
                for name, tensor in own.items():
                    tensor.copy_(given[name][1], non_blocking=True)
                for (_, host, _), result in zip(taken.values(), self._run(own), strict=True):
                    host.copy_(result, non_blocking=True)
                return []

        # The same work has just run.
        replay, _ = self._device.capture(run, self._stream, self._pool, warm_runs=0)
        inputs = {name: views[0] for name, views in given.items()}
        return SlotGraph(inputs, {name: views[0] for name, views in taken.items()}, replay)


def is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error)
