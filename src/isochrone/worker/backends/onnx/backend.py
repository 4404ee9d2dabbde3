"""Models in ONNX files, run by onnxruntime.

``load`` opens a session for one instance; the worker then calls ``execute`` with whole batches. onnxruntime releases
the GIL while it computes. Contiguous inputs are passed without a copy, unless a copy is cheaper.

Cost of a call in µs, 16 → 16 → 16 MLP, one row, one thread, all by onnxruntime's public methods (``session_calls`` is
faster):

    run                                       15.4   returns outputs without a copy
    run_with_iobinding, bound at each call    23.1   binding costs more than it saves
    run_with_iobinding, fresh output          21.2
    run_with_iobinding, bound once per shape  12.4   with the copy into and out of the bound buffers

So a small batch of a known shape uses buffers that are bound once for that shape: two copies of a few hundred bytes are
cheaper than making tensors from arrays. From 16 KiB on the copies cost the gain, and at 1 MiB ``run`` (74) is as fast
as any binding (68 with an output buffer that the caller may not keep, 153 bound at each call).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnxruntime

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed
from isochrone.models.onnx_file import DATATYPE_BY_ONNX_TYPE
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME, bytes_tensor
from isochrone.worker.backends import parameters, session_calls
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.onnx import cuda, sessions
from isochrone.worker.backends.onnx import options as onnx_options
from isochrone.worker.backends.tensors.declared import declared_outputs, scheduler_inputs
from isochrone.worker.backends.tensors.file_shapes import check_dims

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST_MESSAGE = 2000

_ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16; the onnx package is not needed for one number

_BOUND_BYTES = 16 * 1024
_BOUND_SHAPES = 64
# A longer run gains nothing from a binding, and the check of the binding would run it twice.
_BOUND_RUN_NS = 1_000_000


class _Binding:
    """Buffers for one shape of batch, bound to the session once."""

    __slots__ = ("inputs", "outputs", "run")

    def __init__(self, session: Any, inputs: Tensors, outputs: Tensors) -> None:
        io = session.io_binding()
        self.inputs = [(name, np.copy(array)) for name, array in inputs.items()]
        self.outputs = [(name, np.empty_like(array)) for name, array in outputs.items()]
        for name, buffer in self.inputs:
            io.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(buffer))
        for name, buffer in self.outputs:
            io.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(buffer))
        self.run = session_calls.bound_run(session, io)


class OnnxExecutable(Executable):
    """A session whose tensors all have numpy's number types."""

    # onnxruntime copies even an input that the graph returns.
    fresh_outputs = True
    only_computes = True

    def __init__(self, context: LoadContext, session: Any) -> None:
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._session = session
        self._input_names = [node.name for node in session.get_inputs()]
        self._output_names = list(declared_outputs(context))
        #: By requested outputs and input shapes; None: this shape is faster unbound.
        self._bindings: dict[Any, _Binding | None] = {}
        on_cpu = session.get_providers() == [onnx_options.CPU_PROVIDER]
        self._plain_run = session_calls.plain_run(session) if on_cpu else session.run
        self._binding_allowed = on_cpu and parameters.boolean(context, "io_binding", True)
        # A run on a device waits for it.
        self.inline_allowed = on_cpu

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        try:
            if not self._binding_allowed or len(inputs) != len(self._input_names):
                return self._run(inputs, outputs)
            key = (outputs, *[inputs[name].shape for name in self._input_names])
            binding = self._bindings.get(key)
            if binding is None:
                return self._run_unbound(key, inputs, outputs)
            for name, buffer in binding.inputs:
                buffer[...] = inputs[name]
            try:
                binding.run()
            except Exception:
                return self._run_after_failure(inputs, outputs)
            return {name: buffer.copy() for name, buffer in binding.outputs}
        except IsochroneError:
            raise
        except Exception as error:
            raise ModelFailed(f"{self._label}: onnxruntime: {str(error)[:_LONGEST_MESSAGE]}") from error

    def _run(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        names = self._output_names if outputs is None else outputs
        return dict(zip(names, self._plain_run(names, inputs), strict=True))

    def _run_unbound(self, key: Any, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """Runs a batch unbound, and binds buffers for its shape if that is worthwhile."""
        if key in self._bindings:
            return self._run(inputs, outputs)
        begun = perf_counter_ns()
        results = self._run(inputs, outputs)
        # A slow run may be a stall of the machine, so the shape may be bound later.
        if perf_counter_ns() - begun > _BOUND_RUN_NS or len(self._bindings) >= _BOUND_SHAPES:
            return results
        self._bindings[key] = None
        if sum(array.nbytes for tensors in (inputs, results) for array in tensors.values()) <= _BOUND_BYTES:
            binding = _Binding(self._session, inputs, results)
            binding.run()
            # Verified: a graph that returns its input or a constant, or draws random numbers, must not be bound.
            if all(buffer.tobytes() == results[name].tobytes() for name, buffer in binding.outputs):
                self._bindings[key] = binding
        return results

    def _run_after_failure(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """A bound run failed: the batch is bad and fails again, or output shapes depend on the data."""
        results = self._run(inputs, outputs)
        self._binding_allowed = False
        self._bindings.clear()
        return results

    def close(self) -> None:
        self._bindings.clear()
        self._session = self._plain_run = None


class ConvertingExecutable(OnnxExecutable):
    """A session with tensors of types that onnxruntime and numpy represent differently: strings and bfloat16."""

    def __init__(self, context: LoadContext, session: Any) -> None:
        super().__init__(context, session)
        self._binding_allowed = False
        # onnxruntime accepts strings only as arrays and returns bfloat16 only as OrtValues; ``load`` rejects both.
        self._gives_bfloat16 = "BF16" in declared_outputs(context).values()

    def _run(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        names = self._output_names if outputs is None else list(outputs)
        feed = {name: _to_onnxruntime(name, array) for name, array in inputs.items()}
        if not self._gives_bfloat16:
            return dict(zip(names, map(_from_numpy, self._session.run(names, feed)), strict=True))
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                feed[name] = onnxruntime.OrtValue.ortvalue_from_numpy(value)
        values = self._session.run_with_ort_values(names, feed)
        return {name: _from_ortvalue(value) for name, value in zip(names, values, strict=True)}


class GraphExecutable(OnnxExecutable):
    """A session whose run is captured as a CUDA graph: all runs have the same shapes, and the same buffers."""

    def __init__(self, context: LoadContext, session: Any, device: str = "cuda") -> None:
        super().__init__(context, session)
        self._binding_allowed = False
        self._device = (device, context.gpu or 0)
        batch = (1,) if context.signature.max_batch_size else ()
        dims = {spec.name: spec.dims if spec.reshape is None else spec.reshape for spec in context.signature.outputs}
        #: Arrays that stand for the outputs' shapes and types.
        self._expected = {
            name: np.empty((*batch, *dims[name]), NUMPY_BY_NAME[datatype])
            for name, datatype in declared_outputs(context).items()
        }
        self._bound: cuda.BoundBuffers | None = None

    def _run(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        if self._bound is None:
            self._bound = cuda.BoundBuffers(self._session, self._device, inputs, self._expected)
        results = self._bound.run(inputs)
        return results if outputs is None else {name: results[name] for name in outputs}

    def close(self) -> None:
        self._bound = None
        super().close()


def _to_onnxruntime(name: str, array: Tensor) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BFLOAT16)
    return _decoded(name, array) if array.dtype == np.object_ else array


def _decoded(name: str, array: Tensor) -> Tensor:
    """Decodes UTF-8: onnxruntime would silently use the ``repr`` of a ``bytes``."""
    strings = np.empty(array.shape, np.object_)
    flat = strings.reshape(-1)
    for position, element in enumerate(array.reshape(-1)):
        try:
            flat[position] = element if isinstance(element, str) else bytes(element).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"input '{name}' element {position}: expected UTF-8, as every string of an onnx model, given {error}"
            ) from None
    return strings


def _from_ortvalue(value: Any) -> Tensor:
    if value.data_type() == "tensor(bfloat16)":
        # numpy() has no type for bfloat16; the bytes are in host memory and are copied while ``value`` is alive.
        size = value.tensor_size_in_bytes()
        raw = ctypes.string_at(value.data_ptr(), size) if size else b""
        return np.frombuffer(bytearray(raw), ml_dtypes.bfloat16).reshape(value.shape())
    return _from_numpy(value.numpy())


def _from_numpy(array: Tensor) -> Tensor:
    if array.dtype == np.object_:
        return bytes_tensor([element.encode() for element in array.reshape(-1)], array.shape)
    return array


def load(context: LoadContext) -> Executable:
    path = _model_file(context)
    options = onnx_options.session_options(context)
    providers = onnx_options.execution_providers(context)
    cuda.preload_libraries(providers)
    try:
        session = sessions.open_session(path, options, providers)
    except Exception as error:
        raise InvalidArgument(f"{path}: onnxruntime cannot load this file: {error}") from error
    session.disable_fallback()
    cuda.check_provider(context, session)
    types = _check_tensors(context, session, path)
    if types & {"BYTES", "BF16"}:
        return ConvertingExecutable(context, session)
    if "enable_cuda_graph" in dict(providers).get(cuda.PROVIDER, {}):
        return GraphExecutable(context, session)
    return OnnxExecutable(context, session)


def keep(context: LoadContext) -> bool:
    """Open the session of an instance for a process to be forked; False: that is not possible."""
    if context.gpu is not None:
        return False  # no fork survives the driver, which a look for the GPU starts
    options = onnx_options.session_options(context)
    return sessions.keep(_model_file(context), options, onnx_options.execution_providers(context))


def _model_file(context: LoadContext) -> Path:
    path = context.directory / (context.config.default_model_filename or "model.onnx")
    if path.is_dir():  # a model with external data is a directory of that name
        path = path / "model.onnx"
    if not path.is_file():
        raise ConfigError(str(path), "model file", "an onnx file", "no such file")
    return path


def _check_shapes(context: LoadContext, session: Any) -> None:
    signature = context.signature
    batched = signature.max_batch_size > 0
    for specs, nodes in ((signature.inputs, session.get_inputs()), (signature.outputs, session.get_outputs())):
        # A free size is a name or None.
        shapes = {node.name: tuple(size if isinstance(size, int) else -1 for size in node.shape) for node in nodes}
        for spec in specs:
            dims, output = spec.dims if spec.reshape is None else spec.reshape, specs is signature.outputs
            check_dims(signature.model, spec.name, shapes[spec.name], dims, batched=batched, output=output)


def _check_tensors(context: LoadContext, session: Any, path: Path) -> set[str]:
    """Rejects a configuration that contradicts the file; returns every datatype that they exchange."""
    given_inputs = {node.name: node.type for node in session.get_inputs()}
    given_outputs = {node.name: node.type for node in session.get_outputs()}
    declared_inputs = {spec.name: spec.datatype for spec in context.signature.inputs}
    outputs = declared_outputs(context)
    for kind, declared, given in (
        ("input", declared_inputs, given_inputs),
        ("output", outputs, given_outputs),
    ):
        for name, datatype in declared.items():
            if name not in given:
                expected = f"one of the {kind}s of {path.name}: " + ", ".join(given)
                raise ConfigError(parameters.where(context), f"{kind}.name", expected, repr(name))
            of_file = DATATYPE_BY_ONNX_TYPE.get(given[name], given[name])
            if of_file != datatype:
                expected = f"{of_file}, as {path.name} says"
                raise ConfigError(parameters.where(context), f"{kind} '{name}' data_type", expected, datatype)
    # Inputs with a default in the file (overridable initializers) are not among get_inputs().
    unfed = set(given_inputs) - set(declared_inputs) - scheduler_inputs(context)
    if "tensor(string)" in given_inputs.values() and "BF16" in outputs.values():
        expected = "no BF16 beside BYTES inputs, which onnxruntime's Python interface cannot combine"
        raise ConfigError(parameters.where(context), "output.data_type", expected, "both")
    if unfed:
        expected = f"every input of {path.name}: " + ", ".join(given_inputs)
        missing = "none for " + ", ".join(sorted(unfed))
        raise ConfigError(parameters.where(context), "input", expected, missing)
    _check_shapes(context, session)
    used = {*given_inputs.values(), *(given_outputs[name] for name in outputs)}
    return {DATATYPE_BY_ONNX_TYPE.get(onnx_type, onnx_type) for onnx_type in used}
