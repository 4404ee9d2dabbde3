"""One torch model on one GPU.

``launch_batch`` gathers the inputs of a batch into a staging slot and starts copies and compute; ``collect_batch``
waits for the result. The worker calls them from two threads, so that a batch is gathered and copied while the one
before it computes, and the answers of a batch are written while the next one computes.

Copies of small tensors go to the stream that computes: an event between two streams costs as much as the copy. Large
inputs are copied on a stream of their own, into the slot, while the batch before computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import IsochroneError, ModelFailed
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends.declared import declared_outputs
from isochrone.worker.backends.device_array import DeviceArray
from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.torch.gpu.capture_plan import Dims
from isochrone.worker.backends.torch.gpu.graphs import Graphs
from isochrone.worker.backends.torch.gpu.slots import Buffer, Slot, torch_dtype
from isochrone.worker.backends.torch.gpu.staging import StagingRing
from isochrone.worker.backends.torch.results import Results

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.gpu.device import Device
    from isochrone.worker.backends.torch.gpu.settings import GpuSettings

#: Filling, computing, draining.
SLOTS = 3
#: Copies of at least this size get a stream of their own.
_LARGE_COPY_BYTES = 256 * 1024


@dataclass(slots=True)
class Flight:
    """A batch on the device."""

    slot: int
    #: Rows of each request.
    parts: list[int]
    #: The names of each request's outputs; None: all.
    wanted: list[tuple[str, ...] | None]
    #: Name → array of the slot that holds it, once ``copied_out`` has happened.
    arrays: dict[str, Tensor]


class GpuExecutable(Executable):
    """One module on one device, with its graphs, streams and slots."""

    inline_allowed = False
    only_computes = True
    fresh_outputs = True
    takes_device_arrays = True

    def __init__(
        self,
        context: LoadContext,
        torch: Any,
        module: Callable[..., Any],
        arguments: tuple[list[str], list[str]],
        device: Device,
        settings: GpuSettings,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.overlaps = settings.overlap
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._torch = torch
        self._module: Callable[..., Any] | None = module
        self._positional, self._keywords = arguments
        self._device = device
        self._settings = settings
        self._mode = mode
        #: The type in which the model computes, if it is not that of its file.
        self._own_type = getattr(torch, settings.dtype) if settings.dtype else None
        self._batched = context.config.max_batch_size > 0
        self._outputs = [(name, NUMPY_BY_NAME[datatype]) for name, datatype in declared_outputs(context).items()]
        self._results = Results(self._label, [name for name, _ in self._outputs])
        self._input_types = {spec.name: NUMPY_BY_NAME[spec.datatype] for spec in context.signature.inputs}
        self._stream, self._copy_in, self._copy_out = device.stream(), device.stream(), device.stream()
        self.graphs: Graphs | None = None
        #: Rows that were computed for nobody, because a graph is larger than its batch.
        self.padded_rows = 0
        self._slots = [self._new_slot() for _ in range(SLOTS)]
        self._ring = StagingRing(SLOTS)
        #: Guards the ring, and the order of launches.
        self._changed = threading.Condition()
        self.closed: Callable[[], None] = _nothing

    def _new_slot(self) -> Slot:
        settings = self._settings
        inputs = {
            name: Buffer(self._torch, self._device, dtype, pinned=settings.pinned_inputs)
            for name, dtype in self._input_types.items()
        }
        outputs = {
            name: Buffer(self._torch, self._device, dtype, pinned=settings.pinned_outputs)
            for name, dtype in self._outputs
        }
        return Slot(self._device, inputs, outputs)

    @property
    def stream(self) -> Any:
        """The stream that computes."""
        return self._stream

    @property
    def slot_bytes(self) -> int:
        """Memory of the device that the slots hold now."""
        return sum(slot.device_bytes for slot in self._slots)

    # Called by the worker.

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        rows = next(iter(inputs.values())).shape[0] if self._batched and inputs else 0
        return self.collect_batch(self._launch([inputs], [rows], [outputs], rows))[0]

    def launch_batch(self, requests: Sequence[InferRequest], rows: int) -> Flight:
        return self._launch(
            [request.inputs for request in requests],
            [request.plan.batch_size for request in requests],
            [request.plan.outputs for request in requests],
            rows if self._batched else 0,
        )

    def collect_batch(self, flight: Any) -> list[Tensors]:
        launched: Flight = flight
        slot = self._slots[launched.slot]
        failure: BaseException | None = None
        arrays: dict[str, Tensor] = {}
        try:
            slot.copied_out.synchronize()
            # Out of the slot, which the next batch overwrites.
            arrays = {name: array.copy() for name, array in launched.arrays.items()}
        except Exception as error:
            failure = error
        with self._changed:
            self._ring.drain(launched.slot)
            self._ring.release(launched.slot)
            self._changed.notify()
        if failure is not None:
            raise self._failed(failure) from failure
        return self._split(arrays, launched)

    def close(self) -> None:
        graphs, self.graphs = self.graphs, None
        if graphs is not None:
            graphs.clear()
        self._module = None
        self._slots = []
        for stream in (self._stream, self._copy_in, self._copy_out):
            self._device.release_stream(stream)
        self._device.free_cached()
        self.closed()

    # The way of a batch.

    def _launch(
        self, parts: list[Tensors], rows_of: list[int], wanted: list[tuple[str, ...] | None], rows: int
    ) -> Flight:
        with self._changed:
            number = self._ring.acquire()
            while number is None:
                self._changed.wait()
                number = self._ring.acquire()
            slot = self._slots[number]
            try:
                with self._mode():
                    arrays = self._start(slot, parts, rows)
            except BaseException as error:
                self._settle()
                self._ring.release(number)
                self._changed.notify()
                if isinstance(error, Exception):
                    raise self._failed(error) from error
                raise
            self._ring.launch(number)
            return Flight(number, rows_of, wanted, arrays)

    def _start(self, slot: Slot, parts: list[Tensors], rows: int) -> dict[str, Tensor]:
        """Starts copies and compute; returns the arrays of the slot that will hold the results."""
        device, stream = self._device, self._stream
        first = parts[0]
        shapes = {name: tuple(first[name].shape[1:] if self._batched else first[name].shape) for name in first}
        dims: Dims = tuple(sorted(shapes.items()))
        graph = None if self.graphs is None else self.graphs.graph_for(rows, dims)
        inputs: dict[str, Any] = {}
        #: Inputs on the device's side of the slot, or with the caller, to be copied into those of the graph.
        moved: list[tuple[str, Any]] = []
        copied_apart = False
        for name, shape in shapes.items():
            values = [part[name] for part in parts]
            if any(isinstance(value, DeviceArray) for value in values):
                moved.append((name, values))
                continue
            array, host, on_device = slot.inputs[name].views((rows, *shape) if self._batched else shape)
            if len(values) == 1:
                np.copyto(array, values[0])
            else:
                np.concatenate(values, out=array)
            if array.nbytes >= _LARGE_COPY_BYTES:
                with device.on(self._copy_in):
                    on_device.copy_(host, non_blocking=True)
                copied_apart = True
                moved.append((name, on_device))
            elif graph is not None:
                moved.append((name, host))
            else:
                with device.on(stream):
                    on_device.copy_(host, non_blocking=True)
                moved.append((name, on_device))
        if copied_apart:
            slot.copied_in.record(self._copy_in)
            device.wait(stream, slot.copied_in)
        with device.on(stream):
            for name, source in moved:
                target = None if graph is None else graph.inputs[name]
                inputs[name] = self._fill(target, source, rows)
            if graph is None:
                results = self._call(inputs)
            else:
                if graph.rows > rows:
                    self.padded_rows += graph.rows - rows
                    for tensor in graph.inputs.values():
                        tensor[rows:].zero_()
                graph.replay()
                results = graph.results
            return self._copy_results(slot, results, rows)

    def _fill(self, target: Any, source: Any, rows: int) -> Any:
        """Brings one input to where the model reads it: the graph's own memory, or any."""
        if isinstance(source, list):
            tensors = [self._on_device(value) for value in source]
            if target is None:
                return self._converted(tensors[0] if len(tensors) == 1 else self._torch.cat(tensors))
            if len(tensors) > 1 and tensors[0].dtype == target.dtype:
                self._torch.cat(tensors, out=target[:rows])
                return target
            source = tensors[0] if len(tensors) == 1 else self._torch.cat(tensors)
        elif target is None:
            return self._converted(source)
        (target[:rows] if self._batched else target).copy_(source, non_blocking=True)
        return target

    def _converted(self, tensor: Any) -> Any:
        """An input in the type in which the model computes."""
        if self._own_type is None or not tensor.is_floating_point():
            return tensor
        return tensor.to(self._own_type)

    def _on_device(self, value: Any) -> Any:
        if isinstance(value, DeviceArray):
            return self._torch.as_tensor(value.foreign, device=self._device.name)
        return self._torch.from_numpy(np.ascontiguousarray(value)).to(self._device.name)

    def _call(self, inputs: Mapping[str, Any], module: Callable[..., Any] | None = None) -> list[Any]:
        module = module or self._module
        assert module is not None
        positional = [inputs[name] for name in self._positional]
        keywords = {name: inputs[name] for name in self._keywords}
        matched = self._results.matched(module(*positional, **keywords))
        return [matched[name] for name, _ in self._outputs]

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """One run, to be captured in a graph."""
        with self._mode():
            return self._call(inputs)

    def compiled(self, mode: str) -> Callable[[Mapping[str, Any]], list[Any]]:
        """``run`` of the module compiled for the shapes of its first call; one for each graph."""

        def run(inputs: Mapping[str, Any]) -> list[Any]:
            shapes = tuple(tuple(tensor.shape) for tensor in inputs.values())
            call = by_shapes.get(shapes)
            if call is None:
                call = by_shapes[shapes] = self._torch.compile(self._module, mode=mode, dynamic=False)
            with self._mode():
                return self._call(inputs, call)

        by_shapes: dict[Any, Any] = {}
        return run

    def new_input(self, name: str, shape: tuple[int, ...]) -> Any:
        """An input of a graph: zeros, in the type in which the model reads it."""
        dtype = torch_dtype(self._torch, self._input_types[name])
        if self._own_type is not None and dtype.is_floating_point:
            dtype = self._own_type
        with self._mode():
            return self._torch.zeros(shape, dtype=dtype, device=self._device.name)

    def _copy_results(self, slot: Slot, results: list[Any], rows: int) -> dict[str, Tensor]:
        """Starts the copies to the host. On the stream that computes."""
        device = self._device
        arrays: dict[str, Tensor] = {}
        apart: list[tuple[Any, Any]] = []
        for (name, dtype), result in zip(self._outputs, results, strict=True):
            self._results.check(name, dtype, result, converts=self._own_type is not None)
            value = result[:rows] if self._batched else result
            array, host, on_device = slot.outputs[name].views(tuple(value.shape))
            arrays[name] = array
            separate = self._settings.output_copy_stream
            if separate is None:
                separate = array.nbytes >= _LARGE_COPY_BYTES
            if separate:
                on_device.copy_(value, non_blocking=True)
                apart.append((host, on_device))
            else:
                host.copy_(value, non_blocking=True)
        if not apart:
            slot.copied_out.record(self._stream)
            return arrays
        slot.computed.record(self._stream)
        device.wait(self._copy_out, slot.computed)
        with device.on(self._copy_out):
            for host, on_device in apart:
                host.copy_(on_device, non_blocking=True)
        slot.copied_out.record(self._copy_out)
        return arrays

    def _split(self, arrays: dict[str, Tensor], flight: Flight) -> list[Tensors]:
        if len(flight.parts) == 1:
            return [_named(arrays, flight.wanted[0])]
        results: list[Tensors] = []
        start = 0
        for rows, wanted in zip(flight.parts, flight.wanted, strict=True):
            stop = start + rows
            own = _named(arrays, wanted)
            results.append({name: array[start:stop] for name, array in own.items()})
            start = stop
        return results

    def _settle(self) -> None:
        """Waits until nothing of a batch that failed is on its way: its slot is used again."""
        try:
            self._device.synchronize()
        except Exception:  # the error of the batch says it
            pass

    def _failed(self, error: BaseException) -> IsochroneError:
        if isinstance(error, IsochroneError):
            return error
        said = str(error).strip().partition("\n")[0]
        return ModelFailed(f"{self._label}: torch: {said[:2000]}")


def _named(arrays: dict[str, Tensor], wanted: tuple[str, ...] | None) -> dict[str, Tensor]:
    return arrays if wanted is None else {name: array for name, array in arrays.items() if name in wanted}


def _nothing() -> None: ...
