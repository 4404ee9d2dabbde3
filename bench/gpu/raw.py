"""``python -m bench.gpu.raw``: the models without a server, per batch size. What a server is measured against.

- *replay*: a captured CUDA graph, nothing copied; three in flight: rows per second; one at a time: latency.
- *copies*: pinned memory to the GPU, replay, answers to pinned memory, on a stream each, three slots in flight.
- *call*: the same for one batch at a time, on one stream, until the answers are in host memory: latency.
- *eager*: a call without a graph.

On a CPU all of them are plain calls: that shows only that the program works.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.figures import ResultsFile, markdown, percentiles_us, spread
from bench.gpu.models import FILE, compute_alike, write_repository
from bench.gpu.specs import ENCODER_AOTI, FULL, MODELS, OVERLAP, SAMPLES, TINY, ModelSpec, spec_of
from bench.worker.peers.process import scratch

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


def table(figures: list[dict[str, Any]]) -> str:
    """One line per model and batch size."""
    rows = []
    for model, batch in dict.fromkeys((each["model"], each["batch"]) for each in figures):
        own = [each for each in figures if (each["model"], each["batch"]) == (model, batch)]

        def of(mode: str, key: str, own: list[dict[str, Any]] = own) -> list[float | None]:
            return [each.get(key) for each in own if each["mode"] == mode]

        milliseconds = [
            spread((value and value / 1e3 for value in of(mode, "p50_us")), "{:.3f}".format)
            for mode in (REPLAY, CALL, EAGER)
        ]
        rates = [spread(of(mode, "rows_per_second")) for mode in (REPLAY, COPIES)]
        rows.append((f"{model} ×{batch}", *rates, *milliseconds))
    return markdown(("", "replay rows/s", "with copies rows/s", "replay ms", "call ms", "eager call ms"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.raw", description=__doc__)
    parser.add_argument("--repository", type=Path, help="of bench.gpu.models; what is missing in it is made")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cells", default=",".join(MODELS[:3]), help="models")
    parser.add_argument("--batches", default="", help="such as 1,16,64; all graph sizes if left out")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds from the start: no further batch size")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    ends = time.monotonic() + given.limit
    compute_alike(given.device)
    sizes = TINY if given.tiny else FULL
    models = given.cells.split(",")
    batches = [int(each) for each in given.batches.split(",") if each] or list(sizes.graph_batch_sizes)
    results = ResultsFile("gpu-raw", given.results, device=given.device, sizes=sizes.name)
    with scratch("gpu-raw") as directory:
        repository = write_repository(given.repository or directory, given.device, sizes, models, [OVERLAP])
        for model in models:
            raw = RawModel(spec_of(model, sizes), repository / model / "1" / FILE, given.device)
            # Largest first: the pool of the smaller graphs then fits into what is reserved.
            for batch in sorted(batches, reverse=True):
                if time.monotonic() > ends:
                    break
                for _ in range(given.rounds):
                    for mode in given.modes.split(","):
                        results.add(model=model, **raw.measure(mode, batch, given.seconds))
                print(f"{model} ×{batch} done", file=sys.stderr, flush=True)
    print(table(results.figures))
    print(f"written: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
