"""``python -m bench.gpu.green_contexts``: a small model's latency beside a saturating batch job, in one process.

The small one is the encoder with one row, called again and again with pauses; the batch job is ResNet-50 with 64 rows,
two replays in flight. Set-ups: each alone; plain streams; a stream of higher priority for the small one; *limit*: the
batch job in a green context of torch with all SMs but N; *split*: both in green contexts that share no SM, N for the
small one; *served*: both as a worker loads them, with copies, first without an option, then with ``reserved_sms`` of
the small one (the first N, as a process divides a GPU once). A green context divides SMs, not memory bandwidth or
caches.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.budget import rounds_within
from bench.gpu.figures import ResultsFile, markdown, percentiles_us, ratios, spread
from bench.gpu.green_contexts.reserved_jobs import ServedJob
from bench.gpu.green_contexts.sm_partitions import Side, Unsupported, limited, split, total_sms
from bench.gpu.models.repository import FILE, compute_alike, write_repository
from bench.gpu.models.specs import ENCODER, FULL, OVERLAP, RESNET, TINY, ModelSpec, spec_of
from bench.gpu.raw.raw_model import RawModel, Slot
from bench.worker.peers.process import scratch

SMALL_ALONE, BATCH_ALONE, STREAMS, PRIORITY, LIMIT, SPLIT, SERVED = (
    *("small alone", "batch alone", "streams", "priority"),
    *("limit", "split", "served"),
)
#: Between two calls of the small model.
_PAUSE_SECONDS = 0.001


class Job:
    """A model captured for a stream. Kernels of a graph keep the context and priority of the stream they came from."""

    def __init__(self, torch: Any, device: str, model: RawModel, batch: int, stream: Any) -> None:
        self._torch, self._stream, self.batch = torch, stream, batch
        rows = {name: np.resize(each, (batch, *each.shape[1:])) for name, each in model.spec.samples().items()}
        pool = torch.cuda.graph_pool_handle() if stream is not None else None
        self._slot = Slot(torch, device, model.module, rows, pool, stream)

    def call(self) -> None:
        """Once, to its end."""
        self.launch()
        if self._stream is not None:
            self._stream.synchronize()

    def launch(self) -> Any:
        """Once; the event of its end, if there is a GPU."""
        if self._stream is None:
            self._slot.compute()
            return None
        with self._torch.cuda.stream(self._stream):
            self._slot.compute()
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return event


def saturate(job: Job | ServedJob, stop: threading.Event, found: dict[str, float]) -> None:
    """Two in flight until ``stop``; rows per second."""
    pending: list[Any] = []
    count, began = 0, time.perf_counter()
    while not stop.is_set():
        pending.append(job.launch())
        count += 1
        if len(pending) > 1 and (event := pending.pop(0)) is not None:
            event.synchronize()
    for event in pending:
        if event is not None:
            event.synchronize()
    found["rows_per_second"] = count * job.batch / (time.perf_counter() - began)


def measure(small: Job | ServedJob | None, batch: Job | ServedJob | None, seconds: float) -> dict[str, float]:
    stop = threading.Event()
    found: dict[str, float] = {}
    failures: list[Exception] = []

    def work(job: Job | ServedJob) -> None:
        try:
            saturate(job, stop, found)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, args=(batch,), daemon=True) if batch else None
    if thread:
        thread.start()
    latencies: list[int] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        if small is not None:
            before = time.perf_counter_ns()
            small.call()
            latencies.append(time.perf_counter_ns() - before)
        time.sleep(_PAUSE_SECONDS)
    stop.set()
    if thread:
        thread.join(30)
        if thread.is_alive():
            raise RuntimeError("the batch job does not end")
    if failures:
        # Without it, the small one's figures would be those of the small one alone.
        raise RuntimeError(f"the batch job failed: {failures[0]}") from failures[0]
    return {**found, **percentiles_us(latencies), "calls": len(latencies)}


def setups(torch: Any, device: str, shares: list[int]) -> list[tuple[str, Side | None, Side | None, str]]:
    """Name, the small one's side, the batch job's, and why the set-up cannot be measured."""
    if device == "cpu":
        nothing = Side(None, 0, None)
        reason = "needs a GPU"
        plain = [(SMALL_ALONE, nothing, None, ""), (BATCH_ALONE, None, nothing, ""), (STREAMS, nothing, nothing, "")]
        return [*plain, *((f"{kind} {sms}", None, None, reason) for sms in shares for kind in (LIMIT, SPLIT))]
    every = total_sms(torch)
    first, second = (Side(torch.cuda.Stream(), every, None) for _ in range(2))
    lowest, highest = 0, -1
    urgent, patient = (Side(torch.cuda.Stream(priority=each), every, None) for each in (highest, lowest))
    found: list[tuple[str, Side | None, Side | None, str]] = [
        (SMALL_ALONE, first, None, ""),
        (BATCH_ALONE, None, second, ""),
        (STREAMS, first, second, ""),
        (PRIORITY, urgent, patient, ""),
    ]
    for sms in shares:
        for kind in (LIMIT, SPLIT):
            try:
                sides = (urgent, limited(torch, every - sms)) if kind == LIMIT else split(torch, sms)
                found.append((f"{kind} {sms}", *sides, ""))
            except Unsupported as error:
                found.append((f"{kind} {sms}", None, None, str(error)))
    return found


def measure_served(
    repository: Path, specs: tuple[ModelSpec, ModelSpec], batch: int, reserved: int, seconds: float
) -> list[tuple[str, dict[str, Any]]]:
    """(set-up, figures or the problem) of the small model alone and beside the batch job."""
    found: list[tuple[str, dict[str, Any]]] = []
    name = f"{SERVED} {reserved}" if reserved else SERVED
    jobs: list[ServedJob] = []
    try:
        # The one that reserves comes first: the other one then has the rest.
        for spec, rows, sms in ((specs[0], 1, reserved), (specs[1], batch, 0)):
            jobs.append(ServedJob(repository, spec, rows, sms))
        found.append((f"{name}, small alone", measure(jobs[0], None, seconds)))
        found.append((name, measure(jobs[0], jobs[1], seconds)))
    except RuntimeError as error:
        found.append((name, {"problem": str(error)[:500]}))
    finally:
        for job in jobs:
            job.close()
    return found


def report(figures: list[dict[str, Any]]) -> str:
    alone = [each.get("rows_per_second") for each in figures if each["setup"] == BATCH_ALONE]
    rows = []
    for name in dict.fromkeys(each["setup"] for each in figures):
        own = [each for each in figures if each["setup"] == name]
        if own[0]["problem"]:
            continue
        latencies = [
            spread((value and value / 1e3 for value in (each.get(key) for each in own)), "{:.3f}".format)
            for key in ("p50_us", "p99_us")
        ]
        rates = [each.get("rows_per_second") for each in own]
        shares = ratios(rates, alone) if len(rates) == len(alone) else []
        sms = f"{own[0]['small_sms'] or '–'} / {own[0]['batch_sms'] or '–'}"
        rows.append((name, sms, *latencies, spread(rates), spread(shares, "{:.0%}".format)))
    header = ("", "SMs small / batch", "small p50 ms", "small p99 ms", "batch rows/s", "of alone")
    problems = {
        each["setup"]: f"{each['setup']}: not measured: {each['problem']}" for each in figures if each["problem"]
    }
    return "\n".join([markdown(header, rows), *problems.values()])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.green_contexts", description=__doc__)
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shares", default="8,16,32,64", help="SMs for the small model")
    parser.add_argument("--cells", default="", help="set-ups by the start of their names, such as streams,split")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds from the start: fewer rounds; none is begun later"
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    compute_alike(given.device)
    ends = time.monotonic() + given.limit
    import torch

    sizes = TINY if given.tiny else FULL
    results = ResultsFile("gpu-green-contexts", given.results, device=given.device, torch=torch.__version__)
    with scratch("gpu-green") as directory:
        repository = write_repository(given.repository or directory, given.device, sizes, [ENCODER, RESNET], [OVERLAP])
        small, batch = (
            RawModel(spec_of(name, sizes), repository / name / "1" / FILE, given.device) for name in (ENCODER, RESNET)
        )
        wanted = tuple(given.cells.split(",")) if given.cells else ("",)
        jobs = []
        for name, of_small, of_batch, problem in setups(torch, given.device, [int(n) for n in given.shares.split(",")]):
            if not name.startswith(wanted):
                continue
            about = {"small_sms": of_small.sms if of_small else 0, "batch_sms": of_batch.sms if of_batch else 0}
            try:
                pair = (
                    Job(torch, given.device, small, 1, of_small.stream) if of_small else None,
                    Job(torch, given.device, batch, sizes.max_batch, of_batch.stream) if of_batch else None,
                )
            except RuntimeError as error:  # a stream of a context in which torch cannot capture
                problem, pair = problem or str(error)[:500], (None, None)
            if problem:
                results.add(setup=name, round=0, problem=problem, **about)
            else:
                jobs.append((name, about, pair))
        # Of each round: every set-up, and the two figures of both served ones.
        figures = len(jobs) + 4 * SERVED.startswith(wanted)
        limited = False
        given.rounds = rounds_within(ends - time.monotonic(), given.rounds, figures * given.seconds)
        for number in range(given.rounds):
            for name, about, pair in jobs:
                if time.monotonic() + given.seconds < ends:
                    try:
                        results.add(setup=name, round=number, problem="", **about, **measure(*pair, given.seconds))
                    except RuntimeError as error:
                        results.add(setup=name, round=number, problem=str(error)[:500], **about)
                else:
                    limited = True
        specs = spec_of(ENCODER, sizes), spec_of(RESNET, sizes)
        first = int(given.shares.split(",")[0])
        for reserved in (0, first) if given.device == "cuda" else (0,):
            for number in range(given.rounds):
                if not SERVED.startswith(wanted):
                    continue
                if time.monotonic() + 2 * given.seconds >= ends:
                    limited = True
                    continue
                sms = {"small_sms": reserved, "batch_sms": total_sms(torch) - reserved if reserved else 0}
                for name, figure in measure_served(repository, specs, sizes.max_batch, reserved, given.seconds):
                    results.add(setup=name, round=number, **{"problem": "", **sms, **figure})
    print(report(results.figures))
    shortfall = results.shortfall("green contexts", limited=limited, problem="")
    print(shortfall)
    print(f"written: {results.path}")
    return 1 if shortfall else 0


if __name__ == "__main__":
    sys.exit(main())
