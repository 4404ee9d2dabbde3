"""Warm-up: every instance runs every batch size that it will use before the model is READY.

The first request is then as fast as the thousandth, and the latency curve is known before the first decision. A run
that fails, or whose outputs differ from the declared types or shapes, fails the load with the model's own message.
Warm-up runs the samples of ``model_warmup``, then zeros at every batch size. A model that cannot process zeros needs
samples, or the parameter ``auto_warmup: false``. A model that is given as an object may have an example, which is then
used in place of zeros. Inputs are read-only, as those of requests are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConfigError, IsochroneError, ModelFailed
from isochrone.models.shapes import fits, shown
from isochrone.models.signature import OIP_NAME_BY_DATA_TYPE
from isochrone.protocol.tensors.binary import from_binary
from isochrone.protocol.tensors.datatypes import numpy_of
from isochrone.worker.backends.interface import WrongOutputs
from isochrone.worker.backends.tensors.datatypes import datatype_of
from isochrone.worker.backends.tensors.received_inputs import as_received, writing_hint

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.interface import Executable
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

log = structlog.get_logger(__name__)

#: Runs of one size: the first includes lazy set-up, the others are measured.
_RUNS = 4
#: After this time, the automatic warm-up of one instance runs each further size once.
_BUDGET_NS = 2 * SECOND


def warm_up(executable: Executable, description: ModelDescription, curve: LatencyCurve) -> None:
    """Warms one instance and feeds the curve."""
    config = description.config
    for sample in config.model_warmup:
        _run_sample(executable, description, sample, curve)
    # The ``in`` test is needed: reading a missing key of a protobuf map inserts it, which would change the digest.
    wish = config.parameters["auto_warmup"].string_value if "auto_warmup" in config.parameters else ""
    if wish.lower() in ("false", "0", "off"):
        return
    if executable.decoupled or not executable.warms_up or config.HasField("sequence_batching"):
        # A stateful model needs a sequence, and a stream may never end.
        return
    try:
        _run_zeros(executable, description, curve)
    except Exception as error:
        if not config.model_warmup:
            used, remedy = _inputs_and_remedy(description, error)
            what = f"model '{description.name}': automatic warm-up, with {used} as inputs"
            raise ModelFailed(f"{what}, failed: {_message(error)}{remedy}") from error
        # Its samples ran; requests measure the other sizes.
        log.info("zeros cannot be used to warm up all batch sizes", model=description.name, error=str(error))


def _inputs_and_remedy(description: ModelDescription, error: Exception) -> tuple[str, str]:
    """For an error: the inputs of the automatic warm-up, and what to do."""
    given = description.model_object
    if given is not None and given.example is not None:
        used, remedy = "the example", ""
    elif given is not None:
        used, remedy = "zeros", " (a model that cannot take zeros needs an example: example={...})"
    else:
        used, remedy = (
            "zeros",
            (
                " (a model that cannot take zeros needs real samples as model_warmup in config.pbtxt, or the parameter "
                'auto_warmup: "false")'
            ),
        )
    if isinstance(error, WrongOutputs):
        return used, ""  # it took its inputs
    return used, writing_hint(error) or remedy


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def batch_sizes(config: Any) -> list[int]:
    """The sizes to warm: powers of two up to the maximum, the maximum itself, and the preferred ones."""
    maximum = config.max_batch_size
    if maximum <= 1:
        return [1]
    sizes = {1, maximum, *config.dynamic_batching.preferred_batch_size}
    size = 2
    while size < maximum:
        sizes.add(size)
        size *= 2
    return sorted(sizes)


def _run_zeros(executable: Executable, description: ModelDescription, curve: LatencyCurve) -> None:
    started = now_ns()
    for rows in batch_sizes(description.config):
        inputs = as_received(_automatic_inputs(description, rows))
        for attempt in range(_RUNS):
            before = now_ns()
            outputs = executable.execute(inputs, None)
            if attempt:
                curve.observe(rows, now_ns() - before)
                continue
            _check_outputs(outputs, description, rows)
            if now_ns() - started > _BUDGET_NS:
                curve.observe(rows, now_ns() - before)
                break


def _automatic_inputs(description: ModelDescription, rows: int) -> Tensors:
    """The example of a model that has one, in every row; otherwise zeros."""
    signature, given = description.signature, description.model_object
    batched = signature.max_batch_size > 0
    if given is not None and given.example is not None:
        example = given.example
        return {name: np.stack([array] * rows) if batched else array for name, array in example.items()}
    inputs: Tensors = {}
    for spec in signature.inputs:
        shape = tuple(max(size, 1) for size in spec.dims)
        inputs[spec.name] = _zeros(spec.datatype, (rows, *shape) if batched else shape)
    return inputs


def _check_outputs(outputs: Tensors, description: ModelDescription, rows: int) -> None:
    """Raises if the type or shape of an output differs from the configuration."""
    signature, given_model = description.signature, description.model_object
    source = "as config.pbtxt declares" if given_model is None else given_model.outputs_source
    for name, array in outputs.items():
        spec = signature.output_by_name.get(name)
        if spec is None:
            # The implicit state of a sequence.
            continue
        if array.dtype != numpy_of(spec.datatype):
            given = datatype_of(array.dtype)
            raise WrongOutputs(f"output '{name}': expected {spec.datatype} {source}, given {given}")
        shape = (rows, *spec.dims) if signature.max_batch_size else spec.dims
        if not fits(array.shape, shape):
            expected, given = shown(shape), shown(array.shape)
            raise WrongOutputs(f"output '{name}': expected shape {expected} {source}, given {given}")


def _zeros(datatype: str, shape: tuple[int, ...]) -> Any:
    if datatype == "BYTES":
        return np.full(shape, b"", dtype=np.object_)
    return np.zeros(shape, numpy_of(datatype))


def _run_sample(executable: Executable, description: ModelDescription, sample: Any, curve: LatencyCurve) -> None:
    rows = max(1, sample.batch_size)
    inputs: Tensors = {}
    for name, given in sample.inputs.items():
        datatype = OIP_NAME_BY_DATA_TYPE[given.data_type]
        shape = tuple(given.dims)
        if given.HasField("input_data_file"):
            array = _from_file(description, given.input_data_file, name, datatype, shape)
        elif given.random_data and datatype != "BYTES":
            array = np.random.default_rng(0).random(shape).astype(numpy_of(datatype))
        else:
            array = _zeros(datatype, shape)
        inputs[name] = np.stack([array] * rows) if description.signature.max_batch_size else array
    inputs = as_received(inputs)
    for attempt in range(max(1, sample.count) + 1):
        before = now_ns()
        try:
            if executable.decoupled:
                _exhaust(executable, inputs)
            else:
                _check_outputs(executable.execute(inputs, None), description, rows)
        except Exception as error:
            raise ModelFailed(
                f"model '{description.name}': warm-up sample '{sample.name}' failed: {_message(error)}"
                f"{writing_hint(error)}"
            ) from error
        if attempt:
            curve.observe(rows, now_ns() - before)


def _exhaust(executable: Executable, inputs: Tensors) -> None:
    responses = executable.stream(inputs, {})
    if isinstance(responses, AsyncIterator):
        asyncio.run(_exhaust_async(responses))
        return
    for _ in responses:
        pass


async def _exhaust_async(responses: AsyncIterator[Tensors]) -> None:
    async for _ in responses:
        pass


def _from_file(description: ModelDescription, name: str, tensor: str, datatype: str, shape: tuple[int, ...]) -> Any:
    path = description.directory / "warmup" / name
    try:
        return from_binary(tensor, datatype, shape, path.read_bytes())
    except (OSError, IsochroneError) as error:
        raise ConfigError(str(path), f"model_warmup input '{tensor}'", "the tensor's bytes", str(error)) from None
