"""Models that OpenVINO reads, run on the CPU or another device that it finds.

``load`` compiles the model for one instance; the worker then calls ``execute`` with whole batches. OpenVINO releases
the GIL while it computes. Parameters have the names of Triton's openvino backend.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed
from isochrone.models.runtimes import optional_runtime
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.openvino.adapting import adapt
from isochrone.worker.backends.openvino.properties import CPU, compile_properties, target_device
from isochrone.worker.backends.tensors.declared import declared_outputs

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST_MESSAGE = 2000


class OpenVinoExecutable(Executable):
    """One infer request of one compiled model."""

    # Results are copied out of the request's memory.
    fresh_outputs = True
    only_computes = True

    def __init__(self, context: LoadContext, compiled: Any, fixed_rows: int, pads: bool) -> None:
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._request = compiled.create_infer_request()
        self._input_numbers = {name: number for number, port in enumerate(compiled.inputs) for name in port.get_names()}
        output_numbers = {name: number for number, port in enumerate(compiled.outputs) for name in port.get_names()}
        self._outputs = [(name, output_numbers[name]) for name in declared_outputs(context)]
        self._fixed_rows = fixed_rows
        self._pads = pads

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        rows = 0
        if self._fixed_rows:
            rows = len(next(iter(inputs.values())))
            inputs = {name: self._full(array) for name, array in inputs.items()}
        try:
            numbered = {self._input_numbers[name]: array for name, array in inputs.items()}
            results = self._request.infer(numbered, share_inputs=True, share_outputs=False)
        except Exception as error:
            raise ModelFailed(f"{self._label}: openvino: {str(error).strip()[:_LONGEST_MESSAGE]}") from error
        requested = self._outputs if outputs is None else [each for each in self._outputs if each[0] in outputs]
        if self._fixed_rows:
            return {name: np.ascontiguousarray(results[number][:rows]) for name, number in requested}
        return {name: results[number] for name, number in requested}

    def _full(self, array: Tensor) -> Tensor:
        missing = self._fixed_rows - len(array)
        if not missing:
            return array
        if not self._pads:
            raise ModelFailed(
                f"{self._label}: expected batches of {self._fixed_rows} rows (SKIP_OV_DYNAMIC_BATCHSIZE without"
                f" ENABLE_BATCH_PADDING), given {len(array)}"
            )
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    def close(self) -> None:
        self._request = None


def load(context: LoadContext) -> Executable:
    openvino = optional_runtime("openvino", "openvino", parameters.where(context))
    if context.config.HasField("sequence_batching"):
        expected = "none: sequences are not served by this backend; backend 'onnxruntime' serves them"
        raise ConfigError(parameters.where(context), "sequence_batching", expected, "one")
    path = _model_file(context)
    core = openvino.Core()
    device = target_device(context, core.available_devices)
    properties = compile_properties(context, device, core.get_property(device, "SUPPORTED_PROPERTIES"))
    fixed = parameters.boolean(context, "SKIP_OV_DYNAMIC_BATCHSIZE", False)
    pads = parameters.boolean(context, "ENABLE_BATCH_PADDING", False)
    fixed_rows = context.signature.max_batch_size if fixed else 0
    extension = parameters.text(context, "CPU_EXTENSION_PATH")
    try:
        if extension is not None and device == CPU:
            core.add_extension(extension)
        model = core.read_model(str(path))
        model = adapt(context, openvino, model, path, fixed_rows)
        compiled = core.compile_model(model, device, properties)
    except IsochroneError:
        raise
    except Exception as error:
        raise InvalidArgument(f"{path}: OpenVINO cannot load this file: {str(error).strip()}") from error
    return OpenVinoExecutable(context, compiled, fixed_rows, pads)


def _model_file(context: LoadContext) -> Path:
    path = context.directory / (context.config.default_model_filename or "model.xml")
    if not path.exists():
        raise ConfigError(str(path), "model file", "a model that OpenVINO reads", "no such file")
    if path.suffix == ".xml" and not path.with_suffix(".bin").is_file():
        raise ConfigError(str(path.with_suffix(".bin")), "model file", f"the weights of {path.name}", "no such file")
    return path
