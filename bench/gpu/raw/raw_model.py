"""A model without a server: a ring of slots with captured graphs, and how long its batches take in each mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.figures import percentiles_us
from bench.gpu.models.specs import ENCODER_AOTI, SAMPLES, ModelSpec

REPLAY, COPIES, CALL, EAGER = "replay", "copies", "call", "eager"
MODES = (REPLAY, COPIES, CALL, EAGER)
SLOTS = 3


class Slot:
    """Buffers of one batch on both sides, and the graph that computes between them."""

    def __init__(
        self, torch: Any, device: str, module: Any, rows: dict[str, np.ndarray], pool: Any, stream: Any
    ) -> None:
        self._torch, self._module = torch, module
        self.host_inputs = [torch.from_numpy(np.ascontiguousarray(array)) for array in rows.values()]
        self.graph = None
        if device == "cpu":
            self.inputs = self.host_inputs
            self.output = self.host_output = module(*self.inputs)
            return
        self.host_inputs = [tensor.pin_memory() for tensor in self.host_inputs]
        self.inputs = [tensor.to(device) for tensor in self.host_inputs]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.output = module(*self.inputs)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.output = module(*self.inputs)
        self.host_output = torch.empty(self.output.shape, dtype=self.output.dtype, pin_memory=True)
        self.arrived, self.computed, self.done = (torch.cuda.Event() for _ in range(3))

    def compute(self, eager: bool = False) -> None:
        if eager or self.graph is None:
            self.output = self._module(*self.inputs)
        else:
            self.graph.replay()

    def copy_in(self) -> None:
        for target, source in zip(self.inputs, self.host_inputs, strict=True):
            target.copy_(source, non_blocking=True)

    def copy_out(self) -> None:
        self.host_output.copy_(self.output, non_blocking=True)


class RawModel:
    """One model on one device. Slots of the last batch size are kept."""

    def __init__(self, spec: ModelSpec, file: Path, device: str) -> None:
        import torch

        self._torch, self.spec, self._device = torch, spec, device
        torch.set_grad_enabled(False)
        if spec.name == ENCODER_AOTI:
            import torch._inductor as inductor

            self.module: Any = inductor.aoti_load_package(str(file))
        else:
            self.module = torch.export.load(str(file)).module()
        if device != "cpu":
            self._in, self._compute, self._out = (torch.cuda.Stream() for _ in range(3))
        self._slots: tuple[int, list[Slot]] = (0, [])

    def reference(self, count: int = SAMPLES) -> np.ndarray:
        """The answers to the samples."""
        arguments = [self._torch.from_numpy(rows).to(self._device) for rows in self.spec.samples(count).values()]
        step = self.spec.sizes.max_batch
        pieces = [self.module(*(each[at : at + step] for each in arguments)) for at in range(0, count, step)]
        found: np.ndarray = self._torch.cat(pieces).float().cpu().numpy()
        return found

    def measure(self, mode: str, batch: int, seconds: float) -> dict[str, Any]:
        """Rows per second, and latencies of what was one at a time."""
        slots = self._slots_of(batch)
        if self._device == "cpu":
            rate, latencies = self._one_at_a_time(slots[0], EAGER, seconds)
        elif mode in (CALL, EAGER):
            rate, latencies = self._one_at_a_time(slots[0], mode, seconds)
        else:
            _, latencies = self._one_at_a_time(slots[0], mode, seconds / 3) if mode == REPLAY else (0, [])
            rate = self._in_flight(slots, mode == COPIES, seconds)
        return {"batch": batch, "mode": mode, "rows_per_second": rate * batch, **percentiles_us(latencies)}

    def _slots_of(self, batch: int) -> list[Slot]:
        if self._slots[0] != batch:
            self._slots = (0, [])
            rows = {name: np.resize(each, (batch, *each.shape[1:])) for name, each in self.spec.samples().items()}
            pool = stream = None
            if self._device != "cpu":
                pool, stream = self._torch.cuda.graph_pool_handle(), self._compute
            made = [Slot(self._torch, self._device, self.module, rows, pool, stream) for _ in range(SLOTS)]
            self._slots = (batch, made)
        return self._slots[1]

    def _one_at_a_time(self, slot: Slot, mode: str, seconds: float) -> tuple[float, list[int]]:
        latencies: list[int] = []
        copies = mode != REPLAY and self._device != "cpu"
        ends = time.perf_counter_ns() + int(seconds * 1e9)
        began = now = time.perf_counter_ns()
        while now < ends or not latencies:
            before = time.perf_counter_ns()
            if self._device == "cpu":
                slot.compute()
            else:
                with self._torch.cuda.stream(self._compute):
                    if copies:
                        slot.copy_in()
                    slot.compute(eager=mode == EAGER)
                    if copies:
                        slot.copy_out()
                self._compute.synchronize()
            now = time.perf_counter_ns()
            latencies.append(now - before)
        return len(latencies) / ((now - began) / 1e9), latencies

    def _in_flight(self, slots: list[Slot], copies: bool, seconds: float) -> float:
        """Batches per second with all slots in flight."""
        cuda = self._torch.cuda
        used = [False] * len(slots)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            at = count % len(slots)
            slot = slots[at]
            if used[at]:
                slot.done.synchronize()
            used[at] = True
            if copies:
                with cuda.stream(self._in):
                    slot.copy_in()
                    slot.arrived.record(self._in)
                self._compute.wait_event(slot.arrived)
            with cuda.stream(self._compute):
                slot.compute()
                slot.computed.record(self._compute)
            if copies:
                self._out.wait_event(slot.computed)
                with cuda.stream(self._out):
                    slot.copy_out()
            slot.done.record(self._out if copies else self._compute)
            count += 1
        cuda.synchronize()
        return count / (time.perf_counter() - began)
