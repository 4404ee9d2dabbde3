"""One torch model on one GPU.

``launch_batch`` gathers the inputs of a batch into a staging slot and starts copies and compute; ``collect_batch``
waits for the result. The worker calls them from two threads, so that a batch is gathered and copied while the one
before it computes, and the answers of a batch are written while the next one computes.

A small batch is one launch: its graph copies, too. Large inputs are copied on a stream of their own, into the slot,
while the batch before computes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from isochrone.devices import loads, losses
from isochrone.devices.cuda.client_pages import CLIENT_PAGES
from isochrone.devices.device_array import DeviceArray
from isochrone.errors import IsochroneError, ModelFailed
from isochrone.worker.backends.devices.errors import device_error
from isochrone.worker.backends.interface import DeviceLost, Executable
from isochrone.worker.backends.tensors.gathering import gather
from isochrone.worker.backends.tensors.result_rows import check_rows
from isochrone.worker.backends.torch.error_text import error_text
from isochrone.worker.backends.torch.gpu.caller_tensors import CallerTensors
from isochrone.worker.backends.torch.gpu.flights import Flight, names_in, split
from isochrone.worker.backends.torch.gpu.graphs import GRAPH_COPY_BYTES, LARGE_COPY_BYTES
from isochrone.worker.backends.torch.gpu.row_copies import copy_rows
from isochrone.worker.backends.torch.gpu.slots import Buffer, Slot, tensor_bytes
from isochrone.worker.backends.torch.gpu.staging import StagingRing

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.gpu.device import Device
    from isochrone.worker.backends.torch.gpu.flights import Wanted
    from isochrone.worker.backends.torch.gpu.graphs import CapturedGraph, Graphs
    from isochrone.worker.backends.torch.gpu.module_call import ModuleCall
    from isochrone.worker.backends.torch.gpu.settings import GpuSettings

#: Filling, computing, draining.
SLOTS = 3
#: The slot of ``execute``, beside the ring.
_OWN_SLOT = SLOTS


class GpuExecutable(Executable):
    """One module on one device, with its graphs, streams and slots."""

    inline_allowed = False
    only_computes = True
    fresh_outputs = True
    pads = True

    def __init__(
        self,
        context: LoadContext,
        torch: Any,
        call: ModuleCall,
        device: Device,
        settings: GpuSettings,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.overlaps = settings.overlap
        # Without the overlap the worker gathers batches itself, on the host.
        self.takes_device_arrays = settings.overlap
        self.polls = settings.overlap and settings.busy_wait
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._torch = torch
        self._call: ModuleCall | None = call
        self._device = device
        self._settings = settings
        self._mode = mode
        self._batched = context.config.max_batch_size > 0
        self._output_names = [name for name, _ in call.outputs]
        self._output_types = [dtype for _, dtype in call.outputs]
        self._callers = CallerTensors(torch, device)
        self.compute_stream, self._copy_in, self._copy_out = device.stream(), device.stream(), device.stream()
        self.graphs: Graphs | None = None
        self.slots = [self._new_slot(call) for _ in range(SLOTS + 1)]
        self._slot_sizes = tensor_bytes(context)
        self._ring = StagingRing(SLOTS)
        #: Guards the ring, and the order of launches.
        self._changed = threading.Condition()
        self.closed: Callable[[], None] = _nothing

    def _new_slot(self, call: ModuleCall) -> Slot:
        settings = self._settings
        inputs = {
            name: Buffer(self._torch, self._device, dtype, pinned=settings.pinned_inputs)
            for name, dtype in call.input_types.items()
        }
        outputs = {
            name: Buffer(self._torch, self._device, dtype, pinned=settings.pinned_outputs)
            for name, dtype in call.outputs
        }
        return Slot(self._device, inputs, outputs)

    def reserve_slots(self) -> None:
        """Takes the memory that the slots will need at most, as far as the configuration fixes shapes."""
        for slot in self.slots:
            for name, size in self._slot_sizes.items():
                (slot.inputs.get(name) or slot.outputs[name]).reserve(size)

    # Called by the worker.

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """Runs one batch alone, from its launch to its result, whatever is in the ring."""
        rows = next(iter(inputs.values())).shape[0] if self._batched and inputs else 0
        flight = Flight(_OWN_SLOT, [rows], [outputs], {}, {})
        with self._changed:
            try:
                self._start(flight, [inputs], rows, ())
                self.slots[_OWN_SLOT].copied_out.synchronize()
            except Exception as error:
                self._settle()
                raise self._failed(error) from error
            finally:
                CLIENT_PAGES.release(flight.held)
            return split({name: array.copy() for name, array in flight.arrays.items()}, flight)[0]

    def launches_quickly(self, requests: Sequence[InferRequest], rows: int) -> bool:
        """A small batch is one launch, of 0.1 ms; inputs on a device take several, no more for one request."""
        if self.graphs is None or not requests or loads.is_loading():
            return False
        graph = self.graphs.graph_for(rows if self._batched else 0, requests[0].plan.shape_key)
        if graph is None:
            return False
        if graph.by_slot and not any(
            isinstance(array, DeviceArray) for request in requests for array in request.inputs.values()
        ):
            return True
        # Large results might be copied by the host.
        return len(requests) == 1 and graph.result_bytes < GRAPH_COPY_BYTES and self._callers.has_inputs_of(requests[0])

    def launch_batch(self, requests: Sequence[InferRequest], rows: int) -> Flight:
        return self._launch(
            [request.inputs for request in requests],
            [request.plan.batch_size for request in requests],
            [request.plan.outputs for request in requests],
            rows if self._batched else 0,
            requests,
        )

    def batch_is_complete(self, flight: Any) -> bool:
        launched: Flight = flight
        launched.is_complete = bool(self.slots[launched.slot].copied_out.query())
        return launched.is_complete

    def collect_batch(self, flight: Any) -> list[Tensors]:
        launched: Flight = flight
        slot = self.slots[launched.slot]
        failure: BaseException | None = None
        arrays: dict[str, Tensor] = {}
        try:
            if not launched.is_complete:
                slot.copied_out.synchronize()
            # Out of the slot, which the next batch overwrites.
            arrays = {name: array.copy() for name, array in launched.arrays.items()}
        except Exception as error:
            failure = error
        with self._changed:
            self._ring.drain(launched.slot)
            self._ring.release(launched.slot)
            self._changed.notify()
        CLIENT_PAGES.release(launched.held)
        if failure is not None:
            raise self._failed(failure) from failure
        return split(arrays, launched)

    def close(self) -> None:
        if losses.is_lost(self._device.name):
            losses.keep(self.graphs, self._call, self.slots, self._callers, self.compute_stream)
            self.closed()
            return
        graphs, self.graphs = self.graphs, None
        if graphs is not None:
            graphs.clear()
        if self._call is not None:
            self._call.free()
            self._call = None
        self.slots = []
        self._callers.clear()
        if self._settings.compile_mode:
            gc.collect()  # compiled modules have cycles; a collection holds the interpreter for some 10 ms
        try:
            for stream in (self.compute_stream, self._copy_in, self._copy_out):
                self._device.release_stream(stream)
            self._device.free_cached()
        finally:
            self.closed()

    # The way of a batch.

    def _launch(
        self,
        parts: list[Tensors],
        rows_of: list[int],
        wanted: Wanted,
        rows: int,
        requests: Sequence[InferRequest],
    ) -> Flight:
        with self._changed:
            number = self._ring.acquire()
            while number is None:
                self._changed.wait()
                number = self._ring.acquire()
            flight = Flight(number, rows_of, wanted, {}, {})
            try:
                self._start(flight, parts, rows, requests)
            except BaseException as error:
                self._settle()
                self._ring.release(number)
                self._changed.notify()
                CLIENT_PAGES.release(flight.held)
                if isinstance(error, Exception):
                    raise self._failed(error) from error
                raise
            self._ring.launch(number)
            return flight

    def _start(self, flight: Flight, parts: list[Tensors], rows: int, requests: Sequence[InferRequest]) -> None:
        """Starts copies and compute."""
        slot = self.slots[flight.slot]
        first = parts[0]
        shapes = {name: array.shape[1:] if self._batched else array.shape for name, array in first.items()}
        values: dict[str, list[Any]] = {name: [part[name] for part in parts] for name in shapes}
        graph = None if self.graphs is None else self.graphs.graph_for(rows, tuple(sorted(shapes.items())))
        if graph is not None:
            self.padded_rows += max(0, graph.rows - rows)
        on_host = not any(isinstance(array, DeviceArray) for arrays in values.values() for array in arrays)
        if graph is not None and graph.by_slot and on_host:
            flight.arrays = self._start_small(slot, graph, flight.slot, values, rows)
            return
        with self._mode():
            sources = self._copied_in(slot, flight, values, shapes, rows)
            with self._device.on(self.compute_stream):
                results = self._start_large(graph, sources, rows)
                if on_host or not requests:
                    to_host = names_in(flight.wanted)
                else:
                    rows_of = flight.parts if self._batched else None
                    named = list(zip(self._output_names, self._output_types, results, strict=True))
                    flight.on_device, to_host = self._callers.write(named, requests, rows_of, flight.wanted)
                self._copy_results(slot, flight, results, rows, to_host)

    def _start_small(
        self, slot: Slot, graph: CapturedGraph, number: int, values: dict[str, list[Any]], rows: int
    ) -> dict[str, Tensor]:
        """One launch: the graph copies from the slot and back to it."""
        whole = graph.by_slot[number]
        for name, arrays in values.items():
            target = whole.inputs[name]
            if graph.rows > rows:
                target[rows:] = 0
                target = target[:rows]
            gather(arrays, target)
        with self._device.on(self.compute_stream):
            whole.replay()
        slot.copied_out.record(self.compute_stream)
        if graph.rows > rows:
            return {name: array[:rows] for name, array in whole.outputs.items()}
        return whole.outputs

    def _copied_in(
        self, slot: Slot, flight: Flight, values: dict[str, list[Any]], shapes: dict[str, Any], rows: int
    ) -> dict[str, Any]:
        """Each input as a tensor of the slot, or as the callers' tensors on the device."""
        sources: dict[str, Any] = {}
        copied_apart = False
        for name, arrays in values.items():
            if any(isinstance(array, DeviceArray) for array in arrays):
                sources[name] = arrays
                continue
            views = slot.inputs[name].views((rows, *shapes[name]) if self._batched else shapes[name])
            array, host, sources[name] = views
            if array.nbytes >= LARGE_COPY_BYTES:
                copied_apart = True
                with self._device.on(self._copy_in):
                    copy_rows(self._device, self._copy_in, arrays, views, flight.held)
                continue
            gather(arrays, array)
            with self._device.on(self.compute_stream):
                sources[name].copy_(host, non_blocking=True)
        if copied_apart:
            slot.copied_in.record(self._copy_in)
            self._device.wait(self.compute_stream, slot.copied_in)
        return sources

    def _start_large(self, graph: CapturedGraph | None, sources: dict[str, Any], rows: int) -> list[Any]:
        """Computes on what ``_copied_in`` copied; returns the results on the device. On the stream that computes."""
        inputs = {
            name: self._callers.joined(source) if isinstance(source, list) else source
            for name, source in sources.items()
        }
        if graph is None:
            assert self._call is not None
            results = self._call.run(inputs)
            if self._batched:  # those of graphs were checked when they were captured
                check_rows(zip(self._output_names, results, strict=True), rows)
            return results
        for name, tensor in graph.inputs.items():
            if graph.rows > rows:
                tensor[rows:].zero_()
            (tensor[:rows] if self._batched else tensor).copy_(inputs[name], non_blocking=True)
        graph.replay()
        return graph.results

    def _copy_results(
        self, slot: Slot, flight: Flight, results: list[Any], rows: int, to_host: set[str] | None
    ) -> None:
        """Starts the copies of the named results to the host; None: of all. On the stream that computes."""
        apart: list[tuple[Any, Any]] = []
        for name, result in zip(self._output_names, results, strict=True):
            if to_host is not None and name not in to_host:
                continue
            value = result[:rows] if self._batched else result
            array, host, on_device = slot.outputs[name].views(tuple(value.shape))
            flight.arrays[name] = array
            separate = self._settings.output_copy_stream
            if separate is None:
                separate = array.nbytes >= LARGE_COPY_BYTES
            if separate:
                on_device.copy_(value, non_blocking=True)
                apart.append((host, on_device))
            else:
                host.copy_(value, non_blocking=True)
        if not apart:
            slot.copied_out.record(self.compute_stream)
            return
        slot.computed.record(self.compute_stream)
        self._device.wait(self._copy_out, slot.computed)
        with self._device.on(self._copy_out):
            for host, on_device in apart:
                host.copy_(on_device, non_blocking=True)
        slot.copied_out.record(self._copy_out)

    def _settle(self) -> None:
        """Waits until nothing of a batch that failed is on its way: its slot is used again.

        Other models on the device are not waited for: this may be the event loop's thread.
        """
        for stream in (self._copy_in, self.compute_stream, self._copy_out):
            try:
                self._device.synchronize(stream)
            except Exception:  # the error of the batch says it
                pass

    def _failed(self, error: BaseException) -> IsochroneError:
        if isinstance(error, IsochroneError):
            return error
        if (lost := device_error(error)) is not None:
            losses.record(self._device.name, lost)
            return DeviceLost(self._label, lost)
        # The further lines of CUDA's errors are advice for those who debug kernels.
        return ModelFailed(f"{self._label}: torch: {error_text(error).partition(chr(10))[0]}")


def _nothing() -> None: ...
