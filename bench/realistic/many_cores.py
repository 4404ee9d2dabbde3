"""`python -m bench.realistic.many_cores`: how far one machine with many cores goes.

Two set-ups, one after the other, each process on a core of its own: `isochrone serve --processes` alone, and
`isochrone gateway --processes` (prequal) before workers that are processes of their own. An onnx model hands 64 floats
back; every request has an id. Closed loops give the highest rate; then HTTP callers that pause between their requests
send half of it, and p99 is measured there. See bench/README.md.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.gateway.placement import move, stay
from bench.gateway.proxies import isochrone_gateway
from bench.gateway.proxies.upstream import Upstream
from bench.realistic.messages import grpc_message, http_message
from bench.realistic.models import WIDTH, write_identity
from bench.realistic.servers import serve
from bench.worker.load import LoadFailed, duration_us, first_group, run_tool
from bench.worker.machine import RESULTS, describe
from bench.worker.payloads import GRPC_INFER_PATH
from bench.worker.peers import Peer
from bench.worker.peers.process import scratch

MODEL = "identity"
#: Streams on a connection.
_GRPC_STREAMS = 8
#: Connections of the paced callers.
_PACED_CONNECTIONS = 1024
_SCRIPT = """
local file = io.open("%(file)s", "rb")
local text = file:read("*a")
file:close()
local head, tail = text:sub(1, %(at)d), text:sub(%(at)d + 13)
local n = 0
request = function()
  n = n + 1
  return head .. string.format("%%012d", n) .. tail
end
"""
#: Milliseconds between an answer and the next request, evenly spread.
_PAUSES = "delay = function() return math.random(0, %d) end\n"


@dataclass(frozen=True)
class Row:
    """One figure; p99 in microseconds where the generator reports it."""

    setup: str
    load: str
    requests_per_second: float
    p99_us: float | None
    #: CPU seconds per second: of the workers, of the gateways.
    worker_cores: float
    gateway_cores: float


@dataclass(frozen=True)
class Setup:
    """What is measured: where requests go, and the processes behind it."""

    name: str
    front: Peer
    workers: Sequence[Peer]
    gateways: Sequence[Peer]
    processes: int
    #: Of the load generators.
    threads: int

    def cpu(self) -> tuple[float, float]:
        return sum(each.cpu_seconds() for each in self.workers), sum(each.cpu_seconds() for each in self.gateways)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.realistic.many_cores", description=__doc__)
    parser.add_argument("--gateways", type=int, default=8, help="processes of the gateway")
    parser.add_argument("--workers", type=int, default=5, help="workers behind the gateway")
    parser.add_argument("--alone", type=int, default=11, help="processes of the worker without a gateway")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="per figure")
    parser.add_argument("--in-flight", type=int, default=128, help="per process that callers connect to")
    parser.add_argument("--quick", action="store_true", help="one of each on shared cores: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if given.quick:
        given.gateways = given.workers = given.alone = given.rounds = given.seconds = 1
        return given
    needed = max(given.gateways + given.workers, given.alone) + 1
    if needed > cores:
        parser.error(f"{needed} cores are needed, this machine gives {cores}: choose fewer processes")
    return given


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def children(pid: int) -> list[int]:
    """Process ids of the processes that a supervisor has started."""
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


class Machine:
    """The cores, in order: servers from the first on, generators on those that are left."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._next = 0

    def rewind(self) -> None:
        self._next = 0

    def place(self, pid: int) -> None:
        """A process, or each process that it supervises, on the next free core; a supervisor has nothing to do."""
        for each in children(pid) or [pid]:
            move(each, frozenset({self._cores[self._next % len(self._cores)]}))
            self._next += 1

    def give_rest_to_generators(self) -> int:
        """The number of cores that the load generators have from now on."""
        rest = self._cores[self._next :] or self._cores
        stay(frozenset(rest))
        return len(rest)


@contextmanager
def workers_alone(machine: Machine, repository: Path, processes: int) -> Iterator[Setup]:
    with scratch("many-cores") as directory:
        options = ["--processes", str(processes)] if processes > 1 else []
        with serve(repository, directory, options) as peer:
            machine.rewind()
            machine.place(peer.pid)
            threads = machine.give_rest_to_generators()
            yield Setup(f"{processes} worker processes", peer, [peer], [], processes, threads)


@contextmanager
def through_gateways(machine: Machine, repository: Path, workers: int, gateways: int) -> Iterator[Setup]:
    machine.rewind()
    with ExitStack() as stack:
        behind = []
        for _ in range(workers):
            directory = stack.enter_context(scratch("many-cores"))
            behind.append(stack.enter_context(serve(repository, directory)))
            machine.place(behind[-1].pid)
        upstreams = [Upstream(_port(each.http_url), _port(each.grpc_address)) for each in behind]
        options = ["--processes", str(gateways)] if gateways > 1 else []
        front = stack.enter_context(isochrone_gateway.start(upstreams, model=MODEL, options=options))
        machine.place(front.pid)
        threads = machine.give_rest_to_generators()
        yield Setup(f"{gateways} gateway processes, {workers} workers", front, behind, [front], gateways, threads)


def _port(address: str | None) -> int:
    return int(str(address).rpartition(":")[2])


class Generator:
    """wrk and h2load with as many threads as there are cores for them."""

    def __init__(self, directory: Path) -> None:
        tensor = np.random.default_rng(7).standard_normal(WIDTH, dtype=np.float32).tobytes()
        request = http_message(MODEL, (1, WIDTH), tensor, with_id=True)
        (directory / "request").write_bytes(request.data)
        self._script = directory / "script.lua"
        self._script.write_text(_SCRIPT % {"file": directory / "request", "at": request.id_at})
        self._directory = directory
        self._body = directory / "message"
        self._body.write_bytes(grpc_message(MODEL, (1, WIDTH), tensor, with_id=True).data)

    def http(self, setup: Setup, connections: int, seconds: int, pause_ms: int = 0) -> tuple[float, float]:
        """Requests per second and p99."""
        script = self._script
        if pause_ms:
            script = self._directory / "paced.lua"
            script.write_text(self._script.read_text() + _PAUSES % pause_ms)
        command = ["wrk", f"-t{setup.threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "--latency"]
        output = run_tool([*command, "-s", str(script), str(setup.front.http_url)], 60 + seconds)
        if problem := re.search(r"Non-2xx.*|Socket errors:.*", output):
            raise LoadFailed(f"wrk: {problem[0].strip()}")
        rate = float(first_group(r"Requests/sec:\s+([\d.]+)", output))
        return rate, duration_us(first_group(r"(?m)^\s+99%\s+(\S+)$", output))

    def grpc(self, setup: Setup, connections: int, requests: int) -> float:
        """Requests per second."""
        command = [
            *("h2load", f"-t{setup.threads}", f"-n{requests}", f"-c{connections}", f"-m{_GRPC_STREAMS}"),
            *("-d", str(self._body), "-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://{setup.front.grpc_address}{GRPC_INFER_PATH}",
        ]
        output = run_tool(command, 120)
        if int(first_group(r"(\d+) succeeded", output)) != requests:
            raise LoadFailed(f"h2load: {first_group(r'(requests: .*)', output)}")
        received = int(first_group(r"\((\d+)\) data", output))
        if received < requests * 4 * WIDTH:
            raise LoadFailed(f"gRPC errors: expected {requests * 4 * WIDTH} bytes of tensors, given {received}")
        return requests / (duration_us(first_group(r"finished in (\S+),", output)) / 1e6)


def measure(setup: Setup, generator: Generator, seconds: int, in_flight: int) -> Iterator[Row]:
    connections = in_flight * setup.processes

    def row(load: str, rate: float, p99: float | None, before: tuple[float, float], elapsed: float) -> Row:
        after = setup.cpu()
        found = Row(setup.name, load, rate, p99, (after[0] - before[0]) / elapsed, (after[1] - before[1]) / elapsed)
        tail = f", p99 {p99 / 1000:.2f} ms" if p99 is not None else ""
        say(f"  {load:20} {rate:10,.0f} /s{tail}; {found.worker_cores:.1f} cores of workers, {found.gateway_cores:.1f}")
        return found

    generator.http(setup, connections, 1)
    before = setup.cpu()
    highest, p99 = generator.http(setup, connections, seconds)
    yield row("HTTP, closed loop", highest, p99, before, seconds)
    before = setup.cpu()
    # Callers that pause for twice `mean` at most send one request per `mean` each.
    mean = _PACED_CONNECTIONS / (highest / 2) * 1000
    rate, p99 = generator.http(setup, _PACED_CONNECTIONS, seconds, max(1, round(2 * mean)))
    yield row("HTTP, half of it", rate, p99, before, seconds)
    connections = max(setup.threads, connections // _GRPC_STREAMS)
    rate = generator.grpc(setup, connections, 40_000)
    requests = max(40_000, int(rate * seconds))
    before = setup.cpu()
    rate = generator.grpc(setup, connections, requests)
    yield row("gRPC, closed loop", rate, None, before, requests / rate)


def main() -> int:
    given = arguments()
    machine = Machine()
    rows: list[Row] = []
    with scratch("many-cores") as directory:
        repository = write_identity(directory / "models", MODEL)
        generator = Generator(directory)
        for number in range(given.rounds):
            say(f"round {number + 1} of {given.rounds}")
            for started in (
                workers_alone(machine, repository, given.alone),
                through_gateways(machine, repository, given.workers, given.gateways),
            ):
                with started as setup:
                    say(setup.name)
                    rows += measure(setup, generator, given.seconds, given.in_flight)
    print(f"{'':40} {'':18} {'requests/s':>26} {'p99 ms':>20}")
    for setup_name, load in dict.fromkeys((row.setup, row.load) for row in rows):
        found = [row for row in rows if (row.setup, row.load) == (setup_name, load)]
        rates = sorted(row.requests_per_second for row in found)
        tails = sorted(row.p99_us / 1000 for row in found if row.p99_us is not None)
        spread = f"{rates[len(rates) // 2]:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})"
        tail = f"{tails[len(tails) // 2]:.2f} ({tails[0]:.2f}–{tails[-1]:.2f})" if tails else ""
        print(f"{setup_name:40} {load:18} {spread:>26} {tail:>20}")
    target = given.results / "many-cores.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": describe(), "rows": [asdict(row) for row in rows]}, indent=1))
    print(f"written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
