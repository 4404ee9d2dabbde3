"""The load tools that are set beside each other: each measures one closed loop, and says its rate and percentiles.

A tool that is not there raises ``ToolUnavailable`` with the reason. None of them shares code with `isochrone bench`.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.load_tool.isochrone_bench import bench
from bench.worker.load import LoadFailed, duration_us, first_group, grpc_load, http_load, run_tool
from bench.worker.payloads import HttpRequest
from bench.worker.peers import Peer
from bench.worker.peers.process import PEERS
from bench.worker.scenarios import Scenario, http_request

OURS = "isochrone bench"
#: Requests of one slot in flight, below which the time of a tool is mostly its start.
_FEWEST_OF_EACH = 10


class ToolUnavailable(RuntimeError):
    """The tool is not installed; the message says what to install."""


@dataclass(frozen=True)
class Measured:
    """Latencies in ms; None: the tool reports none."""

    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True)
class Cell:
    """One closed loop: a model of a server over a transport with so many in flight, for so long."""

    peer: Peer
    scenario: Scenario
    transport: str
    in_flight: int
    seconds: float
    #: For files of the tools.
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.peer.name} {self.scenario.name} {self.transport} ×{self.in_flight}"


class Tool(Protocol):
    def measure(self, cell: Cell, rate: float) -> Measured:
        """``rate``: what another tool measured, for tools that send a number of requests. Raises ``LoadFailed``."""
        ...


class IsochroneBench:
    def __init__(self, processes: int) -> None:
        self._processes = processes

    def measure(self, cell: Cell, rate: float) -> Measured:
        is_grpc = cell.transport == "grpc"
        url = f"grpc://{cell.peer.grpc_address}" if is_grpc else str(cell.peer.http_url)
        words = ["--concurrency", str(cell.in_flight), "--seconds", f"{cell.seconds:g}", "--warmup-seconds", "0.5"]
        words += ["--processes", str(min(self._processes, cell.in_flight))]
        if is_grpc:
            # As h2load: one connection up to 100 streams.
            words += ["--connections", "1"]
        figures = bench(url, cell.scenario.model, *words)
        total = figures["total"]
        for remark in figures["remarks"]:
            print(f"{cell.name}: {OURS}: {remark}", file=sys.stderr, flush=True)
        failed = total["requests"] - total["outcomes"]["ok"]
        if failed:
            raise LoadFailed(f"isochrone bench: {failed} requests were not answered")
        latency = total["latency_ms"]
        return Measured(total["rate"], latency["p50"]["value"], latency["p99"]["value"])


class Wrk:
    def measure(self, cell: Cell, rate: float) -> Measured:
        figure = http_load(cell.peer, cell.scenario, cell.in_flight, cell.seconds, cell.directory)
        return Measured(figure.requests_per_second, _ms(figure.median_us), _ms(figure.p99_us))


class H2load:
    """By a number of requests: a duration makes it drop streams at the end."""

    def measure(self, cell: Cell, rate: float) -> Measured:
        requests = max(cell.in_flight, round(rate * cell.seconds))
        if cell.transport == "grpc":
            figure = grpc_load(cell.peer, cell.scenario, cell.in_flight, requests, cell.directory)
            return Measured(figure.requests_per_second)
        return self._http(cell, requests)

    def _http(self, cell: Cell, requests: int) -> Measured:
        request = http_request(cell.peer, cell.scenario)
        body = cell.directory / f"{cell.scenario.model}.http"
        body.write_bytes(request.body)
        fields = [word for name, value in request.headers.items() for word in ("-H", f"{name}: {value}")]
        command = ["h2load", "--h1", "-t1", f"-n{requests}", f"-c{cell.in_flight}", "-d", str(body), *fields]
        output = run_tool([*command, f"{cell.peer.http_url}{request.path}"], 120)
        if int(first_group(r"(\d+) succeeded", output)) != requests:
            raise LoadFailed(f"h2load: {first_group(r'(requests: .*)', output)}")
        seconds = duration_us(first_group(r"finished in (\S+),", output)) / 1e6
        return Measured(requests / seconds)


class PerfAnalyzer:
    """Its three windows make up the time, and count whatever their differences are."""

    def measure(self, cell: Cell, rate: float) -> Measured:
        address = cell.peer.grpc_address if cell.transport == "grpc" else str(cell.peer.http_url).partition("//")[2]
        table = cell.directory / "perf_analyzer.csv"
        table.unlink(missing_ok=True)
        window_ms = max(200, round(cell.seconds * 1000 / 3))
        command = [
            *("perf_analyzer", "-m", cell.scenario.model, "-u", str(address), "-i", cell.transport),
            *("-b", "1", "--concurrency-range", f"{cell.in_flight}:{cell.in_flight}", "-f", str(table)),
            *("--measurement-interval", str(window_ms), "--stability-percentage", "100", "--max-trials", "3"),
        ]
        run_tool(command, 120 + 10 * cell.seconds)
        with table.open(newline="") as lines:
            row = next(csv.DictReader(lines), None)
        if row is None:
            raise LoadFailed("perf_analyzer: it wrote no figures; raise --seconds")
        return Measured(
            float(row["Inferences/Second"]), float(row["p50 latency"]) / 1e3, float(row["p99 latency"]) / 1e3
        )


class Locust:
    """With its fast client. It counts latencies in whole milliseconds."""

    def measure(self, cell: Cell, rate: float) -> Measured:
        script = cell.directory / f"locust-{cell.peer.name}-{cell.scenario.model}.py"
        script.write_text(locust_script(http_request(cell.peer, cell.scenario)))
        command = [
            *("locust", "-f", str(script), "--headless", "--json", "--host", str(cell.peer.http_url)),
            *("-u", str(cell.in_flight), "-r", str(cell.in_flight), "-t", f"{max(1, round(cell.seconds))}s"),
        ]
        entries = json.loads(run_tool(command, 120 + 2 * cell.seconds))
        if not entries or entries[0]["num_requests"] < _FEWEST_OF_EACH * cell.in_flight:
            raise LoadFailed("locust: hardly a request was sent in the time; raise --seconds")
        entry = entries[0]
        if entry["num_failures"]:
            raise LoadFailed(f"locust: {entry['num_failures']} requests failed")
        seconds = entry["last_request_timestamp"] - entry["start_time"]
        counts = {float(latency): count for latency, count in entry["response_times"].items()}
        return Measured(entry["num_requests"] / seconds, percentile_of(counts, 50), percentile_of(counts, 99))


def percentile_of(counts: Mapping[float, int], percent: float) -> float:
    """Of values with how often each of them was seen; at least one."""
    wanted, reached = sum(counts.values()) * percent / 100, 0
    for value, count in sorted(counts.items()):
        reached += count
        if reached >= wanted:
            return value
    raise LoadFailed("no request was counted")


def locust_script(request: HttpRequest) -> str:
    """A user who sends this request again and again."""
    return f"""from locust import FastHttpUser, constant, task


class Caller(FastHttpUser):
    wait_time = constant(0)

    @task
    def infer(self):
        self.client.post({request.path!r}, data={request.body!r}, headers={request.headers!r})
"""


#: Name → the tool and its transports. Ours first: every ratio is of it.
def tools(processes: int) -> Mapping[str, tuple[Tool, tuple[str, ...]]]:
    return {
        OURS: (IsochroneBench(processes), ("http", "grpc")),
        "wrk": (Wrk(), ("http",)),
        "h2load": (H2load(), ("http", "grpc")),
        "perf_analyzer": (PerfAnalyzer(), ("http", "grpc")),
        "locust": (Locust(), ("http",)),
    }


def find_program(name: str) -> None:
    """Put the program on PATH for the tools, where `make peers` installed it. Raises ``ToolUnavailable``."""
    if shutil.which(name) is None:
        installed = PEERS / name / "bin"
        if not (installed / name).exists():
            raise ToolUnavailable(
                f"{name} is not on PATH, nor installed by `make peers`; or name its folder with --path"
            )
        os.environ["PATH"] = f"{os.environ['PATH']}:{installed}"
    if name == "perf_analyzer":
        # Its libraries lie beside it.
        root = Path(str(shutil.which(name))).resolve().parents[1]
        folders = {
            str(path.parent) for pattern in ("**/libb64.so.0d", "**/libcudart.so.12") for path in root.glob(pattern)
        }
        inherited = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join([*sorted(folders), *([inherited] if inherited else [])])


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3
