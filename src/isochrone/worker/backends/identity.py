"""Triton's identity backend: the outputs are the inputs, for tests of clients, networks and schedulers.

Output number n is input number n. With names ``INPUT<n>`` and ``OUTPUT<n>``, which Triton requires, equal endings pair
them instead. ``execute_delay_ms`` makes a run last, ``creation_delay_sec`` a load.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from isochrone.errors import ConfigError
from isochrone.models.signature import TensorSpec
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable, LoadContext

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors


class IdentityExecutable(Executable):
    def __init__(self, pairs: list[tuple[TensorSpec, TensorSpec]], batched: bool, delay_seconds: float) -> None:
        self._pairs = pairs
        self._batched = batched
        self._delay_seconds = delay_seconds
        # The event loop must not sleep.
        self.inline_allowed = delay_seconds == 0

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        if self._delay_seconds:
            time.sleep(self._delay_seconds)
        rows = len(next(iter(inputs.values()))) if self._batched and inputs else 1
        return {
            target.name: inputs[source.name] if source.name in inputs else self._zeros(source, rows)
            for source, target in self._pairs
            if outputs is None or target.name in outputs
        }

    def _zeros(self, spec: TensorSpec, rows: int) -> Tensor:
        """What Triton answers for an optional input that a request leaves out: zeros, free sizes being 1."""
        dims = spec.dims if spec.reshape is None else spec.reshape
        shape = [1 if size == -1 else size for size in dims]
        dtype = NUMPY_BY_NAME[spec.datatype]
        full = (rows, *shape) if self._batched else tuple(shape)
        return np.full(full, b"", np.object_) if dtype == np.object_ else np.zeros(full, dtype)

    def close(self) -> None:
        pass


def load(context: LoadContext) -> Executable:
    pairs = _pairs(context)
    if parameters.boolean(context, "enable_custom_tracing", False):
        parameters.reject(context, "enable_custom_tracing", "false: models add no spans to traces here", "true")
    delay = parameters.integer(context, "execute_delay_ms", 0)
    multiplier = parameters.integer(context, "instance_wise_delay_multiplier", 0)
    if multiplier:
        # Instance 0 takes the plain delay, instance n n times the multiplier of it.
        delay *= max(1, multiplier * context.instance)
    creation = parameters.integer(context, "creation_delay_sec", 0)
    if creation:
        time.sleep(creation)
    return IdentityExecutable(pairs, context.signature.max_batch_size > 0, delay / 1000)


def _pairs(context: LoadContext) -> list[tuple[TensorSpec, TensorSpec]]:
    where, signature = parameters.where(context), context.signature
    inputs, outputs = signature.inputs, signature.outputs
    if len(inputs) != len(outputs):
        raise ConfigError(where, "output", f"as many outputs as inputs ({len(inputs)})", str(len(outputs)))
    by_ending = {spec.name.removeprefix("INPUT"): spec for spec in inputs if spec.name.startswith("INPUT")}
    endings = [spec.name.removeprefix("OUTPUT") for spec in outputs if spec.name.startswith("OUTPUT")]
    if sorted(endings) == sorted(by_ending) and len(endings) == len(outputs):
        pairs = [(by_ending[ending], output) for ending, output in zip(endings, outputs, strict=True)]
    else:
        pairs = list(zip(inputs, outputs, strict=True))
    for source, target in pairs:
        if source.datatype != target.datatype:
            key = f"output '{target.name}' data_type"
            raise ConfigError(where, key, f"{source.datatype}, as input '{source.name}' has", target.datatype)
        given, expected = (spec.dims if spec.reshape is None else spec.reshape for spec in (target, source))
        if given != expected:
            key = f"output '{target.name}' dims"
            raise ConfigError(where, key, f"{list(expected)}, as input '{source.name}' has", str(list(given)))
    return pairs
