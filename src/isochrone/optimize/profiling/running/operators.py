"""The operators that take most of a run's time, from the profilers of onnxruntime and torch."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.clock import SECOND, now_ns
from isochrone.optimize.profiling.running.messages import Operator

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.interface import Executable, LoadContext

_MOST_RUNS = 200
_WARM_RUNS = 2


def profile_operators(
    backend: str, context: LoadContext, executable: Executable, inputs: Tensors, seconds: float
) -> list[Operator]:
    """Empty: the backend has no profiler that is read here, or the model runs in another process."""
    if backend == "onnx":
        return _of_onnxruntime(context, inputs, seconds)
    if backend == "torch" and hasattr(executable, "_mode"):
        return _of_torch(executable, inputs, seconds)
    return []


def ranked(totals: Mapping[str, tuple[float, int]], runs: int) -> list[Operator]:
    """``totals``: operator → microseconds and calls of all runs."""
    whole = sum(time for time, _ in totals.values())
    if not whole:
        return []
    operators = [Operator(name, time / whole, time / runs, calls / runs) for name, (time, calls) in totals.items()]
    return sorted(operators, key=lambda each: (-each.share, each.name))


def _repeated(run: Callable[[], object], seconds: float) -> int:
    """The number of runs in so many seconds; one at least."""
    ends = now_ns() + round(seconds * SECOND)
    runs = 0
    while True:
        run()
        runs += 1
        if runs >= _MOST_RUNS or now_ns() >= ends:
            return runs


def _of_onnxruntime(context: LoadContext, inputs: Tensors, seconds: float) -> list[Operator]:
    """In a session of its own, with the options of the instance: a session that profiles is slower."""
    import onnxruntime

    from isochrone.worker.backends.onnx import options as onnx_options

    with tempfile.TemporaryDirectory(prefix="isochrone-profile-") as directory:
        options = onnx_options.session_options(context)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "operators")
        path = context.directory / (context.config.default_model_filename or "model.onnx")
        path = path / "model.onnx" if path.is_dir() else path
        providers = onnx_options.execution_providers(context)
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
        given = {name: _model_form(context, name, array) for name, array in inputs.items()}
        runs = _repeated(lambda: session.run(None, given), seconds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    return ranked(kernel_times(events), runs)


def _model_form(context: LoadContext, name: str, array: Any) -> Any:
    """As the model itself takes it: with ``reshape``, in another shape."""
    reshape = context.signature.input_by_name[name].reshape
    if reshape is None:
        return array
    rows = (len(array),) if context.signature.max_batch_size else ()
    return array.reshape((*rows, *reshape))


def kernel_times(events: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """From onnxruntime's trace: microseconds and calls by operator."""
    totals: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time"):
            name = event.get("args", {}).get("op_name", "?")
            time, calls = totals[name]
            totals[name] = (time + event["dur"], calls + 1)
    return dict(totals)


def _of_torch(executable: Executable, inputs: Tensors, seconds: float) -> list[Operator]:
    import torch

    for _ in range(_WARM_RUNS):
        executable.execute(inputs, None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        runs = _repeated(lambda: executable.execute(inputs, None), seconds)
    totals = {
        str(event.key): (float(event.self_cpu_time_total), int(event.count))
        for event in profiler.key_averages()
        if event.self_cpu_time_total > 0
    }
    return ranked(totals, runs)
