"""What child processes do: inspect a model, apply one transformation, run a candidate. Speaks JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConfigError
from isochrone.models import onnx_telemetry as onnx_telemetry
from isochrone.optimize.measuring.timing import LEAST_TURN_RUNS, WARM_RUNS, Timing, measure, measure_in_turns
from isochrone.optimize.transforming.catalog import TRANSFORMATIONS
from isochrone.optimize.transforming.facts import machine_facts, model_facts
from isochrone.optimize.trials.accuracy import Task, check_reference, compare

#: protobuf's limit on a message, which every transformation needs the model as.
MOST_BYTES = (1 << 31) - 1
#: How names of operators with quantized values begin, onnx's and onnxruntime's.
_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantize",
    "QLinear",
    "QGemm",
    "QAttention",
    "QMoE",
    "QOrdered",
    "MatMulInteger",
    "ConvInteger",
    "MatMulNBits",
    "MatMulBnb4",
    "MatMulFpQ4",
)
#: Inputs that timed runs alternate between.
_TIMED_INPUTS = 16
_FIRST_RUNS = 3


def inspect(source: str, target: str) -> dict[str, Any]:
    """Writes the model as one file, and tells what it declares and consists of."""
    path = Path(source)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(source, "file", "at most 2 GiB, protobuf's limit", f"{size} bytes")
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(source, load_external_data=False)
    except (DecodeError, ValueError, UnicodeDecodeError) as error:
        raise ConfigError(source, "file", "an onnx model", f"bytes that are none ({error})") from None
    if not model.graph.node or not model.opset_import:
        raise ConfigError(source, "file", "an onnx model with operators", "none")
    outside = sum(_external_bytes(tensor) for tensor in model.graph.initializer)
    if size + outside > MOST_BYTES:
        expected = "at most 2 GiB with its weights, protobuf's limit"
        raise ConfigError(source, "file", expected, f"{size + outside} bytes")
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise ConfigError(source, "external data", "files that can be read", str(error)) from None
    onnx.save(model, target)
    from isochrone.models.onnx_file import read_onnx_tensors

    inputs, _ = read_onnx_tensors(Path(target))
    facts = model_facts(model)
    quantized = sorted(name for name in facts.operators if name.startswith(_QUANTIZED))
    if quantized:
        expected = "a float model: what is quantized already is no reference for accuracy"
        raise ConfigError(source, "operators", expected, ", ".join(quantized))
    return {
        "inputs": [[each.name, each.datatype, list(each.shape)] for each in inputs],
        "facts": {**asdict(facts), "operators": sorted(facts.operators)},
    }


def _external_bytes(tensor: Any) -> int:
    return sum(int(entry.value) for entry in tensor.external_data if entry.key == "length")


def transform(name: str, source: str, target: str, data: str, inputs: list[str], on_gpu: bool) -> dict[str, Any]:
    """Applies one transformation, and checks that onnx accepts the result."""
    import onnx

    chosen = TRANSFORMATIONS[name]
    batches = _runs(data, inputs) if chosen.calibrates else []
    chosen.apply(Path(source), Path(target), batches, machine_facts(on_gpu=on_gpu))
    onnx.load(target)
    return {}


def run(
    model: str,
    data: str,
    inputs: list[str],
    reference: str,
    task: str,
    has_labels: bool,
    float_model: str,
    seconds: float,
    most_seconds: float,
) -> dict[str, Any]:
    """Times a model directory's newest version, and compares its outputs with those of ``reference``.

    ``float_model``: the directory of the float model, which is timed in turns with it; "": this is the float model,
    whose outputs become the reference. It decides how many of the held-out runs are compared: as many as it does in
    half of ``most_seconds``, so that slower candidates can be compared too.
    """
    is_reference = not float_model
    executable = _load(Path(model))
    runs = _runs(data, inputs)
    pace = _pace(executable, runs[0], most_seconds)
    if is_reference:
        expected = found = _outputs_within(executable, runs, most_seconds / 2)
        check_reference(found)
    else:
        expected = _read_outputs(Path(reference))
        if pace * len(expected) > most_seconds:
            counted = f"there are {len(expected)} of them"
            raise ValueError(f"too slow to compare: one run takes {pace * 1e3:.0f} ms, and {counted}")
        found = [dict(executable.execute(each, None)) for each in runs[: len(expected)]]
    labels = None
    if has_labels:
        with np.load(data) as archive:
            labels = list(archive["labels"][: len(expected)])
    difference = compare(expected, found, Task(task), labels)
    timed = runs[:_TIMED_INPUTS]
    timing, speed_up = None, None
    if float_model:
        timing, speed_up = _in_turns(executable, _load(Path(float_model)), timed, pace, seconds)
    if timing is None:
        # The compared runs have warmed it up: where a run is slow, more of them are not affordable.
        warm_runs = WARM_RUNS if pace <= seconds else 0
        timing = measure(_repeated(executable, timed), seconds=seconds, warm_runs=warm_runs)
    if is_reference:
        _write_outputs(Path(reference), found)
    return {
        "runs": len(found),
        "milliseconds": timing.milliseconds,
        "low": timing.low / 1e6,
        "high": timing.high / 1e6,
        "p99": timing.p99 / 1e6,
        "relative_error": difference.relative_error,
        "drop": difference.drop,
        "accuracy": difference.accuracy,
        "speed_up": speed_up,
    }


def _in_turns(
    one: Any, other: Any, timed: list[dict[str, Any]], pace: float, seconds: float
) -> tuple[Timing, float] | tuple[None, None]:
    """None where a run is so slow that turns are not affordable."""
    for _ in range(WARM_RUNS):
        pace_of_other = _timed(other, timed[0]) / SECOND
    if LEAST_TURN_RUNS * (pace + pace_of_other) > 2 * seconds:
        return None, None
    return measure_in_turns(_repeated(one, timed), _repeated(other, timed), seconds=seconds)


def _repeated(executable: Any, timed: list[dict[str, Any]]) -> Callable[[], object]:
    turns = itertools.cycle(timed)
    return lambda: executable.execute(next(turns), None)


def _outputs_within(executable: Any, runs: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Of the first runs, until ``seconds`` have passed; of at least one."""
    ends = now_ns() + round(seconds * SECOND)
    found: list[dict[str, Any]] = []
    for each in runs:
        found.append(dict(executable.execute(each, None)))
        if now_ns() >= ends:
            break
    return found


def _pace(executable: Any, inputs: dict[str, Any], most_seconds: float) -> float:
    """Seconds of one run: the shortest of a few. A runtime without a kernel for a type is so slow that one must do."""
    took: list[float] = []
    while len(took) < _FIRST_RUNS and sum(took) < most_seconds / 8:
        took.append(_timed(executable, inputs) / SECOND)
    return min(took)


def _timed(executable: Any, inputs: dict[str, Any]) -> int:
    began = now_ns()
    executable.execute(inputs, None)
    return now_ns() - began


def _load(directory: Path) -> Any:
    """One instance, loaded as a worker loads it."""
    from isochrone.models.configuration.backends import backend_name
    from isochrone.models.instances import configured_instances
    from isochrone.models.repository.repository import Repository
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.registry import loader

    description = Repository([directory.parent]).read(directory.name)
    version = max(description.versions)
    config = description.config
    gpus = [each.gpu for each in configured_instances(config)] or [None]
    context = LoadContext(
        description.name,
        str(version),
        description.versions[version].absolute(),
        config,
        description.signature,
        0,
        (),
        {key: value.string_value for key, value in config.parameters.items()},
        config_source=description.config_source,
        gpu=gpus[0],
    )
    return loader(backend_name(config))(context)


def _runs(data: str, inputs: list[str]) -> list[dict[str, Any]]:
    """Arrays are kept by number: names of inputs may be no names of files."""
    with np.load(data) as archive:
        arrays = {name: archive[str(number)] for number, name in enumerate(inputs)}
    count = len(next(iter(arrays.values())))
    return [{name: array[number] for name, array in arrays.items()} for number in range(count)]


def _write_outputs(path: Path, outputs: list[dict[str, Any]]) -> None:
    names = np.array(list(outputs[0]))
    arrays = {f"{run}_{place}": each[name] for run, each in enumerate(outputs) for place, name in enumerate(names)}
    with path.open("wb") as file:
        np.savez(file, names=names, **arrays)


def _read_outputs(path: Path) -> list[dict[str, Any]]:
    with np.load(path) as archive:
        names = [str(name) for name in archive["names"]]
        count = (len(archive.files) - 1) // len(names)
        return [{name: archive[f"{run}_{place}"] for place, name in enumerate(names)} for run in range(count)]


TASKS: dict[str, Callable[..., dict[str, Any]]] = {each.__name__: each for each in (inspect, transform, run)}
