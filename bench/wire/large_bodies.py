"""Large answers and requests, many at once, direct and through the gateway, for as long as requested, to find hangs.

    python -m bench.wire.large_bodies --minutes 30

One worker, one gateway, stock clients. Every cell keeps some calls of one size under way for a few seconds; cells come
in an order drawn from the seed. At the end: calls by how they ended, resident memory beside the budget, connections
without progress, and the lag of the event loops. The exit status is 1 if a call hung, failed or was answered wrongly,
or if a process held more than its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from bench.ports import free_ports
from bench.wire.large_calls import Calls, run_together
from bench.wire.large_models import write_models
from bench.worker.peers.process import HOST, answers, running, scratch

MB = 1_000_000
#: (bytes, in flight).
CELLS = (
    (2 * MB, 1),
    (2 * MB, 60),
    (4 * MB, 30),
    (32 * MB, 1),
    (32 * MB, 4),
    (32 * MB, 16),
    (100 * MB, 1),
    (100 * MB, 4),
)


class Cell(NamedTuple):
    """One kind of load."""

    way: str
    protocol: str
    direction: str
    size: int
    count: int

    def __str__(self) -> str:
        return f"{self.way:7} {self.protocol:4} {self.direction:7} {self.size // MB:4} MB × {self.count}"


class Process(NamedTuple):
    """A worker or gateway under load."""

    name: str
    pid: int
    metrics: str

    def figures(self) -> dict[str, float]:
        """Its metrics without labels, and the buckets of its event loop lag by bound."""
        found: dict[str, float] = {}
        for line in httpx.get(self.metrics, timeout=30.0, trust_env=False).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("isochrone_") and ("{" not in name or "loop_lag" in name):
                found[name] = float(value)
        return found


def lag_quantile(figures: dict[str, float], share: float) -> float:
    """The upper bound, in ms, of the event loop lag's bucket at this quantile."""
    prefix = 'isochrone_event_loop_lag_seconds_bucket{le="'
    buckets = sorted(
        (float(name[len(prefix) : -2]), count) for name, count in figures.items() if name.startswith(prefix)
    )
    total = buckets[-1][1]
    return next((bound * 1000 for bound, count in buckets if count >= share * total), float("inf"))


def cells(seed: int) -> list[Cell]:
    found = [
        Cell(way, protocol, direction, size, count)
        for way in ("direct", "gateway")
        for protocol in ("http", "grpc")
        for direction in ("produce", "consume")
        for size, count in CELLS
    ]
    random.Random(seed).shuffle(found)
    return found


async def load(addresses: dict[tuple[str, str], str], minutes: float, seconds: float, seed: int) -> Counter[str]:
    """Run cell after cell until the time is up."""
    clients = {key: Calls(key[1], address) for key, address in addresses.items()}
    until = time.monotonic() + minutes * 60
    total: Counter[str] = Counter()
    rounds = 0
    while time.monotonic() < until:
        for cell in cells(seed + rounds):
            if time.monotonic() >= until:
                break
            client = clients[cell.way, cell.protocol]
            call = client.produce if cell.direction == "produce" else client.consume
            begun = time.monotonic()
            ends = await run_together(call, cell.size, cell.count, seconds)
            total += ends
            took = time.monotonic() - begun
            print(f"{cell}  {took:5.1f} s  " + ", ".join(f"{end} {n}" for end, n in ends.most_common()), flush=True)
        rounds += 1
    for client in clients.values():
        await client.close()
    return total


def report(total: Counter[str], processes: list[Process], peaks: dict[str, int], budget: int) -> bool:
    """Print the results; return whether all checks passed."""
    print("calls: " + ", ".join(f"{end} {n}" for end, n in total.most_common()))
    held = total["answered"] + total["refused"] == total.total()
    for process in processes:
        figures = process.figures()
        most = figures["isochrone_buffered_peak_bytes"]
        lags = ", ".join(f"p{share * 100:g} {lag_quantile(figures, share):g} ms" for share in (0.5, 0.99, 0.999, 1.0))
        print(
            f"{process.name}: resident at most {peaks[process.name] // MB} MB; held at most {most / MB:.0f} MB of "
            f"{budget / MB:.0f}; now {figures['isochrone_buffered_bytes'] / MB:.1f} MB, stalled connections "
            f"{figures['isochrone_connections_stalled']:g}; "
            f"rejected {figures['isochrone_rejected_for_memory_total']:g}; loop lag {lags}"
        )
        held = held and most <= budget and not figures["isochrone_connections_stalled"]
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    parser.add_argument("--seconds", type=float, default=4.0, help="per cell (4)")
    parser.add_argument("--seed", type=int, default=1, help="of the cells' order (1)")
    parser.add_argument("--budget-mb", type=int, default=2147, help="max_buffered_bytes of each process, in MB (2147)")
    arguments = parser.parse_args()
    budget = arguments.budget_mb * MB
    command = str(Path(sys.executable).parent / "isochrone")
    limit = ("--limit", f"max_buffered_bytes={budget}")
    with ExitStack() as stack:
        directory = stack.enter_context(scratch("large"))
        repository = write_models(directory / "models")
        ports = free_ports(5)
        http, grpc, worker_metrics, listen, gateway_metrics = ports
        worker = stack.enter_context(
            running(
                "worker",
                [
                    *(command, "serve", repository, "--host", HOST, "--http-port", str(http), "--grpc-port", str(grpc)),
                    *("--metrics-port", str(worker_metrics), *limit),
                ],
                lambda: answers(f"http://{HOST}:{http}/v2/health/ready"),
                log=directory / "worker.log",
            )
        )
        gateway = stack.enter_context(
            running(
                "gateway",
                [
                    *(command, "gateway", "--listen", f"{HOST}:{listen}", "--metrics-port", str(gateway_metrics)),
                    *("--upstream", f"{HOST}:{http},grpc={grpc}", *limit),
                ],
                lambda: answers(f"http://{HOST}:{listen}/v2/health/ready"),
                log=directory / "gateway.log",
            )
        )
        processes = [
            Process("worker", worker, f"http://{HOST}:{worker_metrics}/metrics"),
            Process("gateway", gateway, f"http://{HOST}:{gateway_metrics}/metrics"),
        ]
        addresses = {
            ("direct", "http"): f"{HOST}:{http}",
            ("direct", "grpc"): f"{HOST}:{grpc}",
            ("gateway", "http"): f"{HOST}:{listen}",
            ("gateway", "grpc"): f"{HOST}:{listen}",
        }
        peaks = {process.name: 0 for process in processes}

        async def watched() -> Counter[str]:
            async def watch() -> None:
                while True:
                    for process in processes:
                        peaks[process.name] = max(peaks[process.name], psutil.Process(process.pid).memory_info().rss)
                    await asyncio.sleep(0.2)

            watching = asyncio.ensure_future(watch())
            try:
                return await load(addresses, arguments.minutes, arguments.seconds, arguments.seed)
            finally:
                watching.cancel()

        total = asyncio.run(watched())
        return 0 if report(total, processes, peaks, budget) else 1


if __name__ == "__main__":
    sys.exit(main())
