"""``python -m bench.gpu.memory``: memory of a GPU over loads and unloads, a model that does not fit, an illegal access.

- *cycles*: load and unload over the repository API; free memory of the GPU (NVML) after each unload. Frees that come
  with a delay are waited for, and the wait is part of the figure. A first load and unload, in which the worker imports
  torch, is none of them. Expected: ``--growth-mib`` at most over all cycles. ``--models`` names models and variants,
  which take turns: each has cycles and a growth of its own. Beside each reading is what the worker's ledger holds.
- *refusal*: this process takes the GPU's memory but for ``--leave-gib``, then a model with a weight of ``--weight-gib``
  is loaded. Expected: an error with what it needs and what is free, and a worker that serves on.
- *fault*: a model in a process of its own (``isolation: "process"``) gets ids beyond its table, which the GPU answers
  with an assertion that ends its CUDA context, while another model is under load. Expected: no failure of the other,
  and the faulty one serves again.

On a CPU the resident memory of the worker stands in for the GPU's, whose growth is not judged, nothing is refused, and
the fault is an abort of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.gpu.figures import ResultsFile, markdown
from bench.gpu.load.cores import split_cores
from bench.gpu.load.generators import GeneratorFailed, Generators, Job, fault, summary
from bench.gpu.memory.judgements import (
    MIB,
    cycles_seconds,
    fault_problem,
    growth,
    ledger_bytes,
    refusal_problem,
    settled,
)
from bench.gpu.memory.models import ABORTING, FAULTY, HEAVY, write_aborting, write_faulty, write_heavy
from bench.gpu.models.repository import compute_alike, write_repository
from bench.gpu.models.specs import ENCODER, FULL, OVERLAP, TINY, ModelSpec, base_and_variant, spec_of
from bench.gpu.progress import say
from bench.gpu.raw.process import RawProcess
from bench.gpu.worker import serve
from bench.ports import free_ports
from bench.worker.peers import Peer
from bench.worker.peers.process import HOST, scratch

CYCLES, GROWTH, REFUSAL, FAULT = "cycles", "growth", "refusal", "fault"
#: In which a process that was ended must serve again: it imports torch and loads its model.
_RECOVERY_SECONDS = 60.0
#: Of the refusal, and of the fault without its load.
_REFUSAL_SECONDS, _FAULT_SECONDS = 10.0, 12.0


def used_memory(device: str, peer: Peer) -> Callable[[], int]:
    """Bytes in use: of the GPU, or of the worker's processes."""
    if device == "cpu":
        return peer.resident_bytes
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


class Api:
    """The repository API and single inferences over HTTP."""

    def __init__(self, url: str, metrics_url: str, timeout_seconds: float) -> None:
        self._client = httpx.Client(base_url=url, timeout=timeout_seconds, trust_env=False)
        self._metrics_url = metrics_url

    def ledger(self) -> dict[str, int]:
        return ledger_bytes(self._client.get(self._metrics_url).text)

    def load(self, model: str) -> str:
        """The error, or nothing."""
        answer = self._client.post(f"/v2/repository/models/{model}/load", json={})
        return "" if answer.status_code == 200 else answer.text

    def unload(self, model: str) -> None:
        self._client.post(f"/v2/repository/models/{model}/unload", json={}).raise_for_status()
        self._until(lambda: self._client.get(f"/v2/models/{model}/ready").status_code != 200)

    def infer(self, model: str, name: str, values: list[int]) -> str:
        """The error, or nothing."""
        tensor = {"name": name, "datatype": "INT32", "shape": [1, len(values)], "data": values}
        try:
            answer = self._client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})
        except httpx.TransportError as error:
            return f"no answer: {error}"
        return "" if answer.status_code == 200 else answer.text

    def run(self, spec: ModelSpec) -> str:
        """One row, in the binary form, which every type has; the error, or nothing."""
        rows = spec.samples(1)
        inputs = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": [1, *tensor.dims],
                "parameters": {"binary_data_size": rows[tensor.name].nbytes},
            }
            for tensor in spec.inputs
        ]
        head = json.dumps({"inputs": inputs}).encode()
        body = head + b"".join(rows[tensor.name].tobytes() for tensor in spec.inputs)
        length = {"inference-header-content-length": str(len(head))}
        try:
            answer = self._client.post(f"/v2/models/{spec.name}/infer", content=body, headers=length)
        except httpx.TransportError as error:
            return f"no answer: {error}"
        return "" if answer.status_code == 200 else answer.text

    def _until(self, done: Callable[[], bool], seconds: float = 30.0) -> None:
        ends = time.monotonic() + seconds
        while not done() and time.monotonic() < ends:
            time.sleep(0.005)


def measure_cycles(
    api: Api,
    used: Callable[[], int],
    given: argparse.Namespace,
    results: ResultsFile,
    ends: float,
    others: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """``others``: the seconds that the other parts take before ``ends``. The models have the rest in equal shares."""
    for number, model in enumerate(given.models):
        _cycles_of(api, used, model, given, results, ends, others, len(given.models) - number, clock)


def _cycles_of(
    api: Api,
    used: Callable[[], int],
    model: str,
    given: argparse.Namespace,
    results: ResultsFile,
    ends: float,
    others: float,
    models_left: int,
    clock: Callable[[], float],
) -> None:
    spec = spec_of(model, given.sizes)
    began = clock()
    if error := api.load(model) or api.run(spec):
        results.add(part=CYCLES, model=model, problem=f"the load before the cycles: {error}")
        return
    api.unload(model)
    begins = clock()
    seconds = cycles_seconds(ends - begins, others) / models_left
    say(f"{model}: the load before the cycles took {begins - began:.1f} s; --limit leaves {seconds:.0f} s for them")
    found: list[int] = []
    for number in range(given.cycles):
        if clock() > begins + seconds:
            break
        before, _ = settled(used, 1.0)
        began = clock()
        if error := api.load(model):
            results.add(part=CYCLES, model=model, number=number, problem=error)
            return
        loaded, at, ledger = clock() - began, used(), api.ledger()
        problem = api.run(spec)
        api.unload(model)
        after, waited = settled(used, 1.0)
        found.append(after)
        results.add(
            part=CYCLES,
            model=model,
            number=number,
            before=before,
            loaded=at,
            after=after,
            ledger_loaded=ledger,
            ledger_after=api.ledger(),
            load_seconds=loaded,
            wait_seconds=waited,
            problem=problem,
        )
    judged = growth(found, int(given.growth_mib * MIB))
    judged |= {"problem": ""} if given.device == "cpu" else {}
    results.add(part=GROWTH, model=model, wanted=given.cycles, cycles_seconds=seconds, **judged)


def refusal(api: Api, given: argparse.Namespace, results: ResultsFile, serves: Callable[[], str]) -> None:
    held: Any = None
    if given.device != "cpu":
        import torch

        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(max(0, free - int(given.leave_gib * (1 << 30))), dtype=torch.uint8, device="cuda")
    error = api.load(HEAVY)
    del held
    if given.device != "cpu":
        torch.cuda.empty_cache()
    if not error:
        api.unload(HEAVY)
    problem = "" if given.device == "cpu" else refusal_problem(error)
    results.add(part=REFUSAL, message=error, problem=problem or serves())


def illegal_access(api: Api, given: argparse.Namespace, results: ResultsFile, generators: Generators, job: Job) -> None:
    """The other model is under load before, during and after."""
    model = ABORTING if given.device == "cpu" else FAULTY
    if error := api.load(model):
        results.add(part=FAULT, model=model, problem=f"cannot load: {error}")
        return
    healthy = api.infer(model, "ids", [1, 2, 3, 4])
    begun = generators.begin(job)
    time.sleep(job.warm_seconds + job.seconds * 0.3)
    answers = [api.infer(model, "ids", [1_000_000_000] * 4) for _ in range(given.faults)]
    faulted = time.monotonic()
    while (again := api.infer(model, "ids", [1, 2, 3, 4])) and time.monotonic() - faulted < _RECOVERY_SECONDS:
        time.sleep(0.1)
    recovery = time.monotonic() - faulted
    figure = summary(generators.finish(begun))
    results.add(
        part=FAULT,
        model=model,
        answers_to_faults=answers,
        recovered=not again,
        recovery_seconds=recovery,
        after=again,
        **figure,
        problem=fault(figure) or fault_problem(healthy, answers, again),
    )


def _cycles_table(model: str, found: list[dict[str, Any]]) -> str:
    chosen = {at: found[at] for at in (0, 1, len(found) // 2, len(found) - 1) if at < len(found)}
    rows = [
        (
            f"cycle {at + 1}",
            *(f"{each[key] / MIB:,.1f}" for key in ("before", "loaded", "after")),
            *(f"{sum(each[key].values()) / MIB:,.1f}" for key in ("ledger_loaded", "ledger_after")),
        )
        for at, each in chosen.items()
    ]
    header = (f"{model}: MiB in use", "before", "loaded", "after", "ledger, loaded", "ledger, after")
    waits = [each["wait_seconds"] for each in found]
    waited = f"wait for delayed frees: {statistics.median(waits):.2f} s, {max(waits):.2f} s at most"
    return f"{markdown(header, rows)}\n{waited}"


def report(figures: list[dict[str, Any]]) -> str:
    cycles = [each for each in figures if each["part"] == CYCLES and "after" in each]
    models = dict.fromkeys(each["model"] for each in cycles)
    lines = [_cycles_table(model, [each for each in cycles if each["model"] == model]) for model in models]
    for each in figures:
        if each["part"] == GROWTH and "growth_bytes" in each:
            # The first loads bring CUDA's context, libraries and torch's own memory, which stay.
            grown = f"{each['growth_bytes'] / MIB:+,.1f} MiB"
            head = f"{each['model']}: {each['cycles']} cycles"
            lines.append(f"{head}: {grown} from the end of the second cycle to the end of the last")
        if each["part"] == GROWTH and each["cycles"] < each["wanted"]:
            left = max(0.0, each["cycles_seconds"])
            lines.append(
                f"{each['model']}: only {each['cycles']} of {each['wanted']} cycles: --limit left {left:.0f} s for them"
            )
        if each["part"] == REFUSAL:
            lines.append(f"refusal: {each['message'] or 'none'}")
        if each["part"] == FAULT and "answers" in each:
            lines.append(
                f"fault: {each['answers']:,} answers of the other model, {each['failed']} failed, p99 "
                f"{each.get('p99_us', 0) / 1e3:.2f} ms; the faulty model serves again: {each['recovered']}, "
                f"after {each['recovery_seconds']:.1f} s; "
                f"its callers got: {each['answers_to_faults'][0][:300]}"
            )
        if each["problem"]:
            lines.append(f"PROBLEM {each['part']}: {each['problem'][:1000]}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.memory", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cells", default=f"{CYCLES},{REFUSAL},{FAULT}")
    parser.add_argument(
        "--models", default=ENCODER, help="of the cycles, with commas: encoder, encoder-no_graphs, resnet50, …"
    )
    parser.add_argument("--cycles", "--rounds", type=int, default=100)
    parser.add_argument("--growth-mib", type=float, default=8.0, help="of memory in use that all cycles may bring")
    parser.add_argument("--weight-gib", type=float, default=2.0, help="of the model that does not fit")
    parser.add_argument("--leave-gib", type=float, default=1.0, help="of free memory while it is loaded")
    parser.add_argument("--seconds", type=float, default=8.0, help="of load beside the fault")
    parser.add_argument("--faults", type=int, default=3, help="requests with an illegal access")
    parser.add_argument(
        "--limit", type=float, default=420.0, help="seconds from the start: fewer cycles, so that all parts have time"
    )
    parser.add_argument("--load-timeout", type=float, default=120.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    given.sizes = TINY if given.tiny else FULL
    given.models = given.models.split(",")
    try:
        variants = [base_and_variant(model) for model in given.models]
    except ValueError as error:
        parser.error(f"--models: {error}")
    compute_alike(given.device)
    parts = given.cells.split(",")
    ends = time.monotonic() + given.limit
    _, of_generators = split_cores(sorted(os.sched_getaffinity(0)), 6)
    results = ResultsFile("gpu-memory", given.results, device=given.device, sizes=given.sizes.name)
    with scratch("gpu-memory") as directory:
        repository = directory / "models"
        for model, variant in dict.fromkeys([(ENCODER, OVERLAP), *variants]):
            write_repository(repository, given.device, given.sizes, [model], [variant])
        if REFUSAL in parts:
            write_heavy(repository, given.device, int(given.weight_gib * (1 << 30)))
        if FAULT in parts:
            write_aborting(repository)
            write_faulty(repository, given.device)
        with RawProcess(repository, given.sizes, given.device, of_generators) as raw:
            reference: np.ndarray = raw.reference(ENCODER)
        options = ["--model-control-mode", "explicit"]
        (port,) = free_ports(1)
        with serve(repository, directory, options, timeout_seconds=given.load_timeout, metrics_port=port) as peer:
            api = Api(str(peer.http_url), f"http://{HOST}:{port}/metrics", given.load_timeout)
            if CYCLES in parts:
                others = _REFUSAL_SECONDS * (REFUSAL in parts) + (_FAULT_SECONDS + given.seconds) * (FAULT in parts)
                measure_cycles(api, used_memory(given.device, peer), given, results, ends, others)
            if (REFUSAL in parts or FAULT in parts) and (error := api.load(ENCODER)):
                results.add(part=FAULT, problem=f"cannot load {ENCODER}: {error}")
                parts = []
            if REFUSAL in parts:
                refusal(api, given, results, lambda: api.infer(ENCODER, "ids", [1] * given.sizes.tokens))
            if FAULT in parts:
                job = Job(ENCODER, given.sizes, (str(peer.grpc_address),), {1: reference}, in_flight=8)
                job = Job(**{**vars(job), "seconds": given.seconds})
                with Generators(min(2, len(of_generators)), of_generators) as generators:
                    try:
                        illegal_access(api, given, results, generators, job)
                    except GeneratorFailed as error:
                        results.add(
                            part=FAULT, problem=f"{error}; the worker runs: {peer.alive()}\n{peer.last_lines(15)}"
                        )
            results.note(worker_log=peer.last_lines(20))
    print(report(results.figures))
    print(f"written: {results.path}")
    return 1 if any(each["problem"] for each in results.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
