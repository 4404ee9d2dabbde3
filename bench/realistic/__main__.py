"""`python -m bench.realistic`: what agents send, to our worker, to it behind our gateway, and to Triton, in turns."""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path

from bench.gateway.placement import move, stay
from bench.realistic.cells import Cell, cells
from bench.realistic.load import measure
from bench.realistic.models import COSTS, write_files
from bench.realistic.neighbours import neighbours
from bench.realistic.report import NOT_MEASURED, Findings, Sample, promises, table
from bench.realistic.servers import GATEWAY, TRITON, WORKER, Contender, gateway, is_native, triton, worker
from bench.worker.bare_onnxruntime import rows_per_second, session
from bench.worker.load import LoadFailed
from bench.worker.machine import RESULTS, describe
from bench.worker.peers import PeerUnavailable
from bench.worker.peers.process import scratch

_CONTENDERS = (WORKER, GATEWAY, TRITON)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.realistic", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure (wrk rounds to whole seconds)")
    parser.add_argument("--contenders", default=",".join(_CONTENDERS), help=f"of {', '.join(_CONTENDERS)}")
    parser.add_argument("--in-flight", default="1,8,32,256")
    parser.add_argument("--only", default="", help="cells whose name contains one of these, separated by commas")
    parser.add_argument("--processes", type=int, default=1, help="of the worker, as in isochrone serve --processes")
    parser.add_argument("--quick", action="store_true", help="one round of one second: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    unknown = set(given.contenders.split(",")) - set(_CONTENDERS)
    if unknown:
        parser.error(f"--contenders: expected some of {', '.join(_CONTENDERS)}, given {', '.join(sorted(unknown))}")
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    return given


class Cores:
    """Worker, gateway and client on cores of their own, where there are six or more; otherwise wherever they like."""

    def __init__(self) -> None:
        available = sorted(os.sched_getaffinity(0))
        self.assigned = len(available) >= 6
        self.server = frozenset(available[:2]) if self.assigned else frozenset(available)
        self.gateway = frozenset(available[2:3]) if self.assigned else frozenset(available)
        self.client = frozenset(available[3:]) if self.assigned else frozenset(available)

    def assign(self, contender: Contender) -> None:
        if self.assigned:
            move(contender.worker.pid, self.server)
            if contender.peer is not contender.worker:
                move(contender.peer.pid, self.gateway)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start(names: list[str], files: dict[str, Path], stack: ExitStack, processes: int) -> list[Contender]:
    found = []
    options = ["--processes", str(processes)] if processes > 1 else []
    if WORKER in names or GATEWAY in names:
        behind = stack.enter_context(worker(files, options))
        if WORKER in names:
            found.append(Contender(WORKER, behind, behind))
        if GATEWAY in names:
            found.append(Contender(GATEWAY, stack.enter_context(gateway(behind)), behind))
    if TRITON in names:
        try:
            peer = stack.enter_context(triton(files))
            found.append(Contender(TRITON, peer, peer))
        except PeerUnavailable as error:
            say(f"triton: left out: {error}")
    return found


def sample(contender: Contender, cell: Cell, number: int, seconds: float, directory: Path) -> Sample:
    before = contender.worker.cpu_seconds()
    try:
        figure = measure(contender.peer, cell, seconds, directory)
    except LoadFailed as error:
        say(f"  {cell.name:44} {contender.name:8} failed: {error}")
        return Sample(contender.name, cell, number, None, problem=str(error))
    used = (contender.worker.cpu_seconds() - before) / figure.requests * 1e6
    say(f"  {cell.name:44} {contender.name:8}{figure.requests_per_second:10,.0f} /s {used:8.1f} µs of the worker")
    return Sample(contender.name, cell, number, figure, used)


def main() -> int:
    given = arguments()
    words = [word for word in given.only.split(",") if word]
    chosen = [
        cell
        for cell in cells([int(number) for number in given.in_flight.split(",")])
        if not words or any(word in cell.name for word in words)
    ]
    cores = Cores()
    stay(cores.client)
    files = write_files(given.results / "realistic-onnx")
    samples: list[Sample] = []
    bare: dict[str, list[float]] = {name: [] for name in COSTS}
    begun = time.monotonic()
    with scratch("bench-realistic") as directory, ExitStack() as stack:
        contenders = start(given.contenders.split(","), files, stack, given.processes)
        if not contenders:
            say("no server to measure")
            return 1
        for contender in contenders:
            cores.assign(contender)
        for number in range(given.rounds):
            say(f"round {number + 1} of {given.rounds}")
            for name in COSTS:
                bare[name].append(rows_per_second(session(files[name]), 1, min(1.0, given.seconds)))
            for cell in chosen:
                turn = number % len(contenders)
                with neighbours(cores.server) if cell.neighbours else nullcontext():
                    samples += [
                        sample(contender, cell, number, given.seconds, directory)
                        for contender in contenders[turn:] + contenders[:turn]
                    ]
    findings = Findings(samples, bare, is_native())
    claims = list(promises(findings))
    measured = [line for line in claims if NOT_MEASURED not in line]
    print("\n".join([*table(findings, chosen), "", *measured]))
    if len(measured) < len(claims):
        print(f"  {len(claims) - len(measured)} more were not measured: their cells were left out, or failed")
    for name, rates in bare.items():
        print(f"bare onnxruntime, {name}: {1e6 / sorted(rates)[len(rates) // 2]:.0f} µs a row")
    target = given.results / ("realistic-quick.json" if given.quick else "realistic.json")
    target.write_text(
        json.dumps(
            {
                "machine": describe(),
                "cores_assigned": cores.assigned,
                "triton_backend": "onnxruntime" if is_native() else "python",
                "bare_rows_per_second": bare,
                "samples": [asdict(each) for each in samples],
            },
            indent=1,
        )
    )
    print(f"\n{time.monotonic() - begun:.0f} s; written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
