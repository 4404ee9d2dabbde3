"""CUDA graphs of one instance: the plan's sizes, captured at load with fixed inputs and outputs.

All graphs of an instance share one pool and one stream, and so never run at the same time. The result of one is
overwritten by the next: whoever replays a graph copies its result out on the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import ConfigError, Unavailable
from isochrone.worker.backends.memory_ledger import mebibytes
from isochrone.worker.backends.torch.gpu.capture_plan import CapturePlan

if TYPE_CHECKING:
    from isochrone.worker.backends.torch.gpu.capture_plan import CaptureSize
    from isochrone.worker.backends.torch.gpu.device import Device

log = structlog.get_logger(__name__)

#: A model's call with inputs by name; its results in the order of the declared outputs.
Run = Callable[[Mapping[str, Any]], list[Any]]
MakeInput = Callable[[str, tuple[int, ...]], Any]


class CapturedGraph:
    """One graph with its inputs, whose first rows a batch fills, and its results."""

    __slots__ = ("inputs", "replay", "results", "rows")

    def __init__(self, rows: int, inputs: dict[str, Any], replay: Callable[[], None], results: list[Any]) -> None:
        self.rows = rows
        self.inputs = inputs
        self.replay = replay
        self.results = results


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
        self._captured.clear()


def capture(
    device: Device,
    plan: CapturePlan,
    run: Run,
    make_input: MakeInput,
    stream: Any,
    *,
    label: str,
    where: str,
    required: bool,
    budget: int,
) -> Graphs:
    """Captures a plan, largest graph first.

    ``required``: the configuration asks for graphs, so a model that cannot be captured is an error; otherwise it runs
    without them. Memory that is missing for the largest batch is always an error: it would be missing for a request.
    """
    pool = device.graph_pool()
    captured: dict[CaptureSize, CapturedGraph] = {}
    inputs_by_dims: dict[Any, dict[str, Any]] = {}
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
            whole = inputs_by_dims.get(size.dims)
            if whole is None:
                whole = inputs_by_dims[size.dims] = {
                    name: make_input(name, (size.rows, *dims) if size.rows else dims) for name, dims in size.dims
                }
            # Largest first: the smaller graphs read the first rows of the same memory.
            own = {name: tensor[: size.rows] if size.rows else tensor for name, tensor in whole.items()}
            replay, results = device.capture(lambda inputs=own: run(inputs), stream, pool)  # type: ignore[misc]
            captured[size] = CapturedGraph(size.rows, own, replay, results)
            grown, used = device.reserved() - before - used, device.reserved() - before
            log.debug(
                "graph captured",
                model=label,
                rows=size.rows,
                memory=mebibytes(max(0, grown)),
                capture_ms=(now_ns() - started) // MILLISECOND,
            )
    except Exception as error:
        captured.clear()
        if is_out_of_memory(error):
            free, total = device.memory()
            raise Unavailable(
                f"{label} does not fit on {device.name}: a batch of {size.rows} rows needs more memory than is there, "
                f"{mebibytes(free)} of {mebibytes(total)} were free when it failed; lower max_batch_size"
            ) from error
        said = str(error).strip().partition("\n")[0]
        if required:
            expected = (
                "false, or a model that can be captured: one that never waits for the device (.item(), .cpu(), "
                "nonzero, a size that depends on data)"
            )
            raise ConfigError(where, "optimization.cuda.graphs", expected, f"true; torch: {said}") from error
        log.warning("the model cannot be captured in a graph and runs without", model=label, error=said)
        return Graphs(CapturePlan(()), {}, 0)
    return Graphs(plan, captured, max(0, used))


def is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error)
