"""Drives wrk, h2load and the gRPC probe against one server and reads their output.

Every figure includes the server's CPU seconds over the same time. A run with failed requests is not a figure: it raises
LoadFailed.
"""

import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.worker.conversations import ConversationFailed
from bench.worker.grpc_probe import probe
from bench.worker.payloads import GRPC_INFER_PATH, wrk_script
from bench.worker.peers import Peer
from bench.worker.scenarios import Scenario, grpc_message, http_request


class LoadFailed(RuntimeError):
    """A generator did not finish, or a request failed; the message says which and how."""


@dataclass(frozen=True)
class Figure:
    """One measured run of one server. Latencies in microseconds; None if the generator reports none."""

    requests: int
    requests_per_second: float
    cpu_seconds: float
    median_us: float | None = None
    p99_us: float | None = None
    mean_us: float | None = None
    #: Of a core, where the generator reports it.
    client_share: float | None = None

    @property
    def cpu_us_per_request(self) -> float:
        return self.cpu_seconds / self.requests * 1e6


def http_load(peer: Peer, scenario: Scenario, in_flight: int, seconds: float, directory: Path) -> Figure:
    """wrk with one thread and one connection per request in flight."""
    request = http_request(peer, scenario)
    script = directory / f"{peer.name}-{scenario.model}.lua"
    if not script.exists():
        script.write_text(wrk_script(request))
    # wrk takes whole seconds.
    duration = max(1, round(seconds))
    # The path must stand in the URL: a path given by the script alone is sent as "/".
    command = ["wrk", "-t1", f"-c{in_flight}", f"-d{duration}s", "--timeout", "30s", "--latency"]
    before = peer.cpu_seconds()
    output = run_tool([*command, "-s", str(script), f"{peer.http_url}{request.path}"], 60 + duration * 2)
    cpu_seconds = peer.cpu_seconds() - before
    if problem := re.search(r"Non-2xx.*|Socket errors:.*", output):
        raise LoadFailed(f"wrk: {problem[0].strip()}")
    requests = int(first_group(r"(\d+) requests in", output))
    if not requests:
        raise LoadFailed("wrk: no request was answered")
    return Figure(
        requests=requests,
        requests_per_second=float(first_group(r"Requests/sec:\s+([\d.]+)", output)),
        cpu_seconds=cpu_seconds,
        median_us=duration_us(first_group(r"(?m)^\s+50%\s+(\S+)$", output)),
        p99_us=duration_us(first_group(r"(?m)^\s+99%\s+(\S+)$", output)),
        mean_us=duration_us(first_group(r"Latency\s+(\S+)", output)),
    )


def grpc_load(peer: Peer, scenario: Scenario, in_flight: int, requests: int, directory: Path) -> Figure:
    """h2load with a number of requests: a duration makes it drop streams at the end, which can crash Triton."""
    body = directory / f"{scenario.model}.grpc"
    message = grpc_message(scenario)
    if not body.exists():
        body.write_bytes(message)
    # Servers allow some 100 streams on a connection; past that, several connections.
    connections = 1 if in_flight <= 100 else -(-in_flight // 64)
    command = [
        *("h2load", "-t1", f"-n{requests}", f"-c{connections}", f"-m{in_flight // connections}", "-d", str(body)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),
        f"http://{peer.grpc_address}{GRPC_INFER_PATH}",
    ]
    before = peer.cpu_seconds()
    output = run_tool(command, 120)
    cpu_seconds = peer.cpu_seconds() - before
    succeeded = int(first_group(r"(\d+) succeeded", output))
    if succeeded != requests:
        raise LoadFailed(f"h2load: {first_group(r'(requests: .*)', output)}")
    # A gRPC error is a 200 without a message: h2load counts it as success, but its bytes of DATA differ.
    received = int(first_group(r"\((\d+)\) data", output))
    if received < requests * scenario.tensor_bytes:
        raise LoadFailed(
            f"gRPC errors: expected {requests * scenario.tensor_bytes} bytes of tensors or more, given {received}"
        )
    seconds = duration_us(first_group(r"finished in (\S+),", output)) / 1e6
    return Figure(
        requests=requests,
        requests_per_second=requests / seconds,
        cpu_seconds=cpu_seconds,
        mean_us=duration_us(first_group(r"time for request:\s+\S+\s+\S+\s+(\S+)", output)),
    )


def grpc_rate(peer: Peer, scenario: Scenario, in_flight: int, directory: Path) -> float:
    """Requests per second from runs that grow until one is long enough to choose a request count by."""
    requests = 4 * in_flight
    while True:
        started = time.monotonic()
        rate = grpc_load(peer, scenario, in_flight, requests, directory).requests_per_second
        if time.monotonic() - started > 0.2:
            return rate
        requests *= 4


def grpc_one_at_a_time(peer: Peer, scenario: Scenario, seconds: float) -> Figure:
    """The probe's closed loop of one."""
    if peer.grpc_address is None:
        raise LoadFailed(f"{peer.name} speaks no gRPC")
    before = peer.cpu_seconds()
    try:
        result = probe(peer.grpc_address, grpc_message(scenario), scenario.tensor_bytes, seconds)
    except (ConversationFailed, OSError) as error:
        raise LoadFailed(f"gRPC probe: {error}") from error
    cpu_seconds = peer.cpu_seconds() - before
    ordered = sorted(result.latencies_ns)
    return Figure(
        requests=len(ordered),
        requests_per_second=len(ordered) / result.seconds,
        cpu_seconds=cpu_seconds,
        median_us=statistics.median(ordered) / 1e3,
        p99_us=ordered[int(len(ordered) * 0.99)] / 1e3,
        mean_us=statistics.fmean(ordered) / 1e3,
    )


def run_tool(command: list[str], timeout_seconds: float) -> str:
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{command[0]} did not finish in {timeout_seconds:.0f} s") from None
    if finished.returncode:
        raise LoadFailed(f"{command[0]} exited with {finished.returncode}: {finished.stderr.strip()[-300:]}")
    return finished.stdout


def first_group(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise LoadFailed(f"expected {pattern!r} in the generator's output, given:\n{text[-500:]}")
    return found[1]


_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6}


def duration_us(text: str) -> float:
    """ "1.23ms" as wrk and h2load print it."""
    found = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if found is None:
        raise LoadFailed(f"expected a duration such as 1.23ms, given {text!r}")
    return float(found[1]) * _UNITS[found[2]]
