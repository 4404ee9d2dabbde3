"""`python -m bench.worker.connections`: 10,000 idle and 1,000 busy connections to one worker.

Half of the idle connections are HTTP/1.1, kept alive after one request, half HTTP/2 after SETTINGS; half of the busy
connections use HTTP, half gRPC. At the end every idle connection sends a request and must get its answer. See
bench/README.md.
"""

import argparse
import json
import resource
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.worker.conversations import OPENING, PING, PING_ACK, http_bytes
from bench.worker.crowd import Crowd, GrpcClient, GrpcExchange, HttpClient, HttpExchange, Tally
from bench.worker.machine import RESULTS, describe
from bench.worker.models import write_onnx
from bench.worker.peers import Peer, isochrone_worker
from bench.worker.peers.process import HOST
from bench.worker.scenarios import IDENTITY_64, grpc_message, http_request

#: Ephemeral ports are some 28,000 for each pair of addresses; a source address serves this many connections.
CONNECTIONS_PER_SOURCE = 5_000
AT_ONCE = 250
LIVE = f"GET /v2/health/live HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


@dataclass
class Report:
    """What the run found. Memory in bytes, latencies in µs."""

    idle: int = 0
    busy: int = 0
    resident_before: int = 0
    resident_after_http1: int = 0
    resident_after_http2: int = 0
    resident_while_busy: int = 0
    resident_after_close: int = 0
    bytes_per_idle_http1: float = 0.0
    bytes_per_idle_http2: float = 0.0
    busy_alone: dict[str, float] = field(default_factory=dict)
    busy_beside_idle: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


class Idle:
    """Connections that do nothing, opened a few hundred at a time."""

    def __init__(self) -> None:
        self.http1: list[socket.socket] = []
        self.http2: list[socket.socket] = []
        self._opened = 0

    def _open(self, port: int) -> socket.socket:
        connection = socket.socket()
        connection.bind((f"127.0.0.{2 + self._opened // CONNECTIONS_PER_SOURCE}", 0))
        connection.settimeout(30)
        connection.connect((HOST, port))
        self._opened += 1
        return connection

    def open_http1(self, port: int, count: int) -> None:
        """Each sends one request and gets its answer: it is kept alive, not half-open."""
        for _ in range(0, count, AT_ONCE):
            batch = [self._open(port) for _ in range(min(AT_ONCE, count - len(self.http1)))]
            self.http1 += batch
            _ask_all(batch, LIVE, b"HTTP/1.1 200")

    def open_http2(self, port: int, count: int) -> None:
        """Each exchanges SETTINGS and a PING with the server."""
        for _ in range(0, count, AT_ONCE):
            batch = [self._open(port) for _ in range(min(AT_ONCE, count - len(self.http2)))]
            self.http2 += batch
            _ask_all(batch, OPENING + PING, PING_ACK)

    def check(self) -> dict[str, int]:
        """Uses every connection once more; the failures."""
        failures: dict[str, int] = {}
        for connections, request, answer in ((self.http1, LIVE, b"HTTP/1.1 200"), (self.http2, PING, PING_ACK)):
            for start in range(0, len(connections), AT_ONCE):
                for connection in connections[start : start + AT_ONCE]:
                    try:
                        _ask_all([connection], request, answer)
                    except OSError as error:
                        failures[f"idle connection: {error}"] = failures.get(f"idle connection: {error}", 0) + 1
        return failures

    def close(self) -> None:
        for connection in (*self.http1, *self.http2):
            connection.close()


def _ask_all(connections: list[socket.socket], request: bytes, answer: bytes) -> None:
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        received = b""
        while answer not in received:
            data = connection.recv(65_536)
            if not data:
                raise ConnectionError(f"closed by the server after {received[:100]!r}")
            received += data


def _crowd(peer: Peer, count: int) -> Crowd:
    http_port = int((peer.http_url or "").rpartition(":")[2])
    grpc_address = peer.grpc_address or ""
    exchange = HttpExchange("identity", http_bytes(http_request(peer, IDENTITY_64), HOST))
    call = GrpcExchange("identity", grpc_message(IDENTITY_64), IDENTITY_64.tensor_bytes)
    crowd = Crowd()
    for number in range(count):
        if number % 2:
            crowd.join((HOST, http_port), lambda: HttpClient([exchange]))
        else:
            crowd.join(
                (HOST, int(grpc_address.rpartition(":")[2])),
                lambda: GrpcClient(grpc_address, [call]),
            )
    return crowd


def _latencies(tally: Tally) -> dict[str, float]:
    microseconds = np.array(tally.latencies_ns) / 1e3
    figures = {f"p{share:g}_us": float(np.percentile(microseconds, share)) for share in (50, 99, 99.9)}
    return {"requests_per_second": tally.answered / tally.seconds, "requests": tally.answered, **figures}


def _settled_resident(peer: Peer) -> int:
    """Resident memory once it has stopped moving for a second, or after five."""
    last = peer.resident_bytes()
    for _ in range(5):
        time.sleep(1.0)
        now = peer.resident_bytes()
        if now == last:
            break
        last = now
    return last


def measure(peer: Peer, idle_count: int, busy_count: int, seconds: float) -> Report:
    """The whole story on one running worker."""
    report = Report(idle=idle_count, busy=busy_count)
    http_port, grpc_port = (int((a or "").rpartition(":")[2]) for a in (peer.http_url, peer.grpc_address))
    failures: dict[str, int] = {}

    def busy(count: int) -> dict[str, float]:
        crowd = _crowd(peer, count)
        try:
            tally = crowd.run(seconds=seconds)
            resident = peer.resident_bytes()
        finally:
            crowd.close()
        for failure, times in tally.failures.items():
            failures[failure] = failures.get(failure, 0) + times
        return {**_latencies(tally), "resident_bytes": resident}

    # A few connections first: what is made once is made now. Not many: the idle ones would live in what those left.
    busy(10)
    report.resident_before = _settled_resident(peer)
    idle = Idle()
    try:
        idle.open_http1(http_port, idle_count // 2)
        report.resident_after_http1 = _settled_resident(peer)
        idle.open_http2(grpc_port, idle_count - idle_count // 2)
        report.resident_after_http2 = _settled_resident(peer)
        report.busy_beside_idle = busy(busy_count)
        report.resident_while_busy = int(report.busy_beside_idle["resident_bytes"])
        failures |= idle.check()
    finally:
        idle.close()
    report.resident_after_close = _settled_resident(peer)
    report.busy_alone = busy(busy_count)
    report.bytes_per_idle_http1 = (report.resident_after_http1 - report.resident_before) / (idle_count // 2)
    report.bytes_per_idle_http2 = (report.resident_after_http2 - report.resident_after_http1) / (
        idle_count - idle_count // 2
    )
    report.failures = failures
    return report


def print_report(report: Report) -> None:
    """The figures, and the claim."""
    print(f"\n{report.idle:,} idle connections and {report.busy:,} busy ones, one worker process")
    for label, value in (
        ("before any idle one", report.resident_before),
        ("with idle HTTP/1.1 ones", report.resident_after_http1),
        ("with idle HTTP/2 ones too", report.resident_after_http2),
        ("with the busy ones too", report.resident_while_busy),
        ("after all are closed", report.resident_after_close),
    ):
        print(f"  resident memory {label:28}{value / 2**20:10.1f} MiB")
    print(f"  per idle connection, HTTP/1.1  {report.bytes_per_idle_http1 / 1024:10.2f} KiB")
    print(f"  per idle connection, HTTP/2    {report.bytes_per_idle_http2 / 1024:10.2f} KiB")
    for label, figures in (("alone", report.busy_alone), ("beside the idle", report.busy_beside_idle)):
        print(
            f"  busy ones {label:16}{figures['requests_per_second']:10,.0f} requests/s, "
            + ", ".join(f"p{share} {figures[f'p{share}_us'] / 1000:.1f} ms" for share in ("50", "99", "99.9"))
        )
    print(f"  {'MET   ' if not report.failures else 'MISSED'}  no failure: {sum(report.failures.values())} failures")
    for failure, count in list(report.failures.items())[:10]:
        print(f"    {count} × {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.connections", description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = given.idle + given.busy + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        parser.error(f"open files: expected a hard limit of {needed} or more, given {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with isochrone_worker.start(write_onnx(given.results / "onnx")) as peer:
        report = measure(peer, given.idle, given.busy, given.seconds)
    print_report(report)
    path = given.results / "connections.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(report) | {"machine": describe()}, indent=1))
    print(f"written: {path}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
