"""`python -m bench.load_tool.open_loop`: is the open-loop p99 of `isochrone bench` the one that a calculation gives?

The server (`known_server`) has one queue and service times that are known by seed. `isochrone bench` measures it with
Poisson arrivals and keeps every request. From the arrivals that it recorded and the service times, Lindley's recursion
(`lindley`) gives the latency of each request, and so the p99 that a perfect generator would measure. The exit status is
1 if a p99 differs by more than 5 %. See bench/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.load_tool.cores import Cores, on_cores
from bench.load_tool.isochrone_bench import ENVIRONMENT, bench
from bench.load_tool.known_server import MODEL
from bench.load_tool.lindley import percentile, service_times_ns, sojourn_times
from bench.load_tool.options import make_parser, markdown_head, markdown_row, write_results
from bench.ports import free_ports
from bench.worker.load import LoadFailed
from bench.worker.peers.process import HOST, REPOSITORY_ROOT, answers, running, scratch

MEAN_MS = 4.0
LOADS = (0.3, 0.6, 0.8)
MARGIN = 0.05


@dataclass(frozen=True)
class Compared:
    """One run. Latencies in ms."""

    load: float
    seed: int
    requests: int
    p50: float
    expected_p50: float
    p99: float
    expected_p99: float

    @property
    def ratio(self) -> float:
        return self.p99 / self.expected_p99

    @property
    def is_close(self) -> bool:
        return abs(self.ratio - 1) <= MARGIN


@contextmanager
def known_server(directory: Path, seed: int, cores: Cores) -> Iterator[str]:
    """Its URL while the block runs."""
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    command: list[str | Path] = [
        *(sys.executable, "-m", "bench.load_tool.known_server", "--port", str(port), "--seed", str(seed)),
        *("--mean-ms", f"{MEAN_MS:g}"),
    ]
    environment = {"PYTHONPATH": f"{REPOSITORY_ROOT}:{ENVIRONMENT['PYTHONPATH']}"}
    log = directory / f"known-server-{seed}.log"
    with ExitStack() as stack:
        with on_cores(cores):
            stack.enter_context(
                running("known_server", command, lambda: answers(url), log=log, environment=environment)
            )
        yield url


def compare(url: str, load: float, seed: int, seconds: float, processes: int, cores: Cores, file: Path) -> Compared:
    """Measure at a share of the server's capacity, and calculate. Raises ``LoadFailed``."""
    rate = load * 1000 / MEAN_MS
    words = ["--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--seed", str(seed), "--processes", str(processes)]
    # Without a warm-up: the calculation needs every request from the first on.
    with on_cores(cores):
        found = bench(url, MODEL, *words, "--warmup-seconds", "0", "--output", str(file))
    for remark in found["remarks"]:
        print(f"{load:.0%} of capacity, seed {seed}: {remark}", file=sys.stderr, flush=True)
    figures = found["total"]
    if figures["outcomes"]["ok"] != figures["requests"]:
        raise LoadFailed(f"isochrone bench: requests were not answered: {figures['outcomes']}")
    with np.load(file, allow_pickle=False) as archive:
        arrivals = archive["intended_ns"].tolist()
    expected = sojourn_times(arrivals, service_times_ns(seed, round(MEAN_MS * 1e6), len(arrivals)))
    return Compared(
        load,
        seed,
        len(arrivals),
        figures["latency_ms"]["p50"]["value"],
        percentile(expected, 50) / 1e6,
        figures["latency_ms"]["p99"]["value"],
        percentile(expected, 99) / 1e6,
    )


def main() -> int:
    parser = make_parser("bench.load_tool.open_loop", __doc__)
    parser.add_argument("--seconds", type=float, help="of one run (default: 20; --short: 5)")
    parser.add_argument("--seeds", type=int, help="runs at each load (default: 5; --short: 2)")
    given = parser.parse_args()
    seconds = given.seconds or (5.0 if given.short else 20.0)
    seeds = given.seeds or (2 if given.short else 5)
    print(
        markdown_head("open loop", "requests", "p50 ms", "calculated", "p99 ms", "calculated", "ratio of p99"),
        flush=True,
    )
    compared = []
    with scratch("open-loop") as directory:
        for seed in range(seeds):
            for load in LOADS:
                # A server for each run: its service times begin at the first one.
                with known_server(directory, seed, given.server_cores) as url:
                    file = directory / "run.npz"
                    found = compare(url, load, seed, seconds, given.processes, given.tool_cores, file)
                compared.append(found)
                name = f"{load:.0%} of capacity, seed {seed}"
                figures = (f"{each:.3g}" for each in (found.p50, found.expected_p50, found.p99, found.expected_p99))
                print(markdown_row(name, f"{found.requests:,}", *figures, f"{found.ratio:.3f}"), flush=True)
    apart = [each for each in compared if not each.is_close]
    print(f"within {MARGIN:.0%} of the calculation: {len(compared) - len(apart)} of {len(compared)} runs")
    results = {"seconds": seconds, "open_loop": [{**asdict(each), "ratio": each.ratio} for each in compared]}
    write_results(given.output, "open_loop.json", results)
    return int(bool(apart))


if __name__ == "__main__":
    sys.exit(main())
