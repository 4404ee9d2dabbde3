"""What receiving request bodies costs: CPU time per gRPC call of a server that reads nothing of them.

    python -m bench.wire.receiving --source src --source /path/to/another/src --rounds 5

One server process per source (the wire layer alone, ``receiving_server``), one client process whose frames are made
once. The sources are measured in turn, round after round, on each size; a figure is a median over the rounds, the last
column the first source's CPU time divided by the others'. CPU time says more than requests/s where client and
server share few cores.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from bench.ports import free_ports
from bench.worker.conversations import OPENING, frame, header_blocks
from bench.worker.payloads import GRPC_INFER_PATH

HOST = "127.0.0.1"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """One source, one size, one round."""

    calls_per_second: float
    cpu_us: float
    faults: float


class Sender:
    """One connection: several calls of one size in flight."""

    def __init__(self, port: int, size: int, frame_bytes: int, in_flight: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        blocks = header_blocks(f"{HOST}:{port}", GRPC_INFER_PATH)
        self._first = frame(_HEADERS, _END_HEADERS, 1, blocks[0])
        body = b"\0" + (size - 5).to_bytes(4, "big") + bytes(size - 5)
        call, self._offsets = bytearray(), []
        pieces = [body[at : at + frame_bytes] for at in range(0, size, frame_bytes)]
        for kind, flags, payload in [(_HEADERS, _END_HEADERS, blocks[1]), *((_DATA, 0, piece) for piece in pieces)]:
            self._offsets.append(len(call) + 5)
            call += frame(kind, flags, 0, payload)
        call[self._offsets[-1] - 1] |= _END_STREAM
        self._idle = [bytearray(call) for _ in range(in_flight)]
        self._busy: deque[bytearray] = deque()
        self._out: deque[memoryview] = deque()
        self._size = size
        self._stream = -1
        self._window = 65_535
        self._rest = b""
        self.answered = 0
        self.socket.sendall(OPENING)
        while self._window <= size:
            self.receive()
        self.socket.setblocking(False)

    def fill(self) -> bool:
        """Begin calls and send what the socket takes; False: it takes no more."""
        while self._idle and self._window >= self._size:
            call = self._idle.pop()
            self._stream += 2
            for offset in self._offsets:
                struct.pack_into(">I", call, offset, self._stream)
            self._window -= self._size
            view = memoryview(call)
            if self._stream == 1:
                self._out.append(memoryview(self._first))
                view = view[self._offsets[1] - 5 :]
            self._out.append(view)
            self._busy.append(call)
        while self._out:
            try:
                sent = self.socket.sendmsg(self._out)
            except BlockingIOError:
                return False
            while sent:
                part = self._out[0]
                if sent < len(part):
                    self._out[0] = part[sent:]
                    break
                sent -= len(part)
                self._out.popleft()
        return True

    def receive(self) -> None:
        data = self._rest + self.socket.recv(1 << 18)
        if data == self._rest:
            raise RuntimeError("the server closed the connection")
        position = 0
        while len(data) - position >= 9:
            end = position + 9 + int.from_bytes(data[position : position + 3], "big")
            if end > len(data):
                break
            kind, flags, payload = data[position + 3], data[position + 4], data[position + 9 : end]
            if kind == _HEADERS and flags & _END_STREAM:
                # Answers come in any order, but every call has the same bytes apart from its stream.
                self._idle.append(self._busy.popleft())
                self.answered += 1
            elif kind == _SETTINGS and not flags & _ACK:
                self.socket.sendall(frame(_SETTINGS, _ACK, 0))
            elif kind == _WINDOW_UPDATE and data[position + 5 : position + 9] == bytes(4):
                self._window += int.from_bytes(payload, "big")
            elif kind not in (_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE):
                raise RuntimeError(f"a frame of type {kind}: {payload[:200]!r}")
            position = end
        self._rest = data[position:]


class Server:
    """A process of one source's wire layer."""

    def __init__(self, source: Path, held: int = 1) -> None:
        self.port = free_ports(1)[0]
        environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{_REPOSITORY_ROOT}"}
        command = [sys.executable, "-m", "bench.wire.receiving_server", str(self.port), str(held)]
        self.process = subprocess.Popen(command, env=environment, cwd=_REPOSITORY_ROOT)
        for _ in range(200):
            try:
                socket.create_connection((HOST, self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise RuntimeError("the server did not start")

    def used(self) -> tuple[float, int]:
        """CPU seconds and minor page faults so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[7])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(server: Server, size: int, options: argparse.Namespace) -> Figure:
    made = [Sender(server.port, size, options.frame_bytes, options.in_flight) for _ in range(options.connections)]
    senders = {sender.socket.fileno(): sender for sender in made}
    poll = select.epoll()
    for file, sender in senders.items():
        poll.register(file, select.EPOLLIN | (0 if sender.fill() else select.EPOLLOUT))
    begun = 0
    cpu, faults, start = 0.0, 0, 0.0
    now = time.monotonic()
    warm, end = now + options.seconds / 5, now + options.seconds * 1.2
    while now < end:
        for file, event in poll.poll(1.0):
            sender = senders[file]
            if event & select.EPOLLIN:
                sender.receive()
            poll.modify(file, select.EPOLLIN | (0 if sender.fill() else select.EPOLLOUT))
        now = time.monotonic()
        if not start and now > warm:
            start, begun, (cpu, faults) = now, sum(s.answered for s in senders.values()), server.used()
    calls = sum(s.answered for s in senders.values()) - begun
    cpu_after, faults_after = server.used()
    poll.close()
    for sender in senders.values():
        sender.socket.close()
    return Figure(calls / (now - start), 1e6 * (cpu_after - cpu) / calls, (faults_after - faults) / calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--source", action="append", type=Path, help="a source folder; the first is the baseline")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 10_000, 150_000, 300_000, 1_000_000])
    parser.add_argument("--frame-bytes", type=int, default=1 << 20)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=4, help="calls in flight on each connection")
    parser.add_argument(
        "--held", type=int, default=1, help="calls that are answered at a time, as those of a batch are"
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sources = [source.resolve() for source in options.source or [_REPOSITORY_ROOT / "src"]]
    servers = [Server(source, options.held) for source in sources]
    print(f"{'bytes':>9} {'calls/s':>9} {'CPU µs/call':>12} {'faults/call':>12} {'ratio':>6}  source")
    try:
        for size in options.sizes:
            found: list[list[Figure]] = [[] for _ in servers]
            for _ in range(options.rounds):
                for server, figures in zip(servers, found, strict=True):
                    figures.append(measure(server, size, options))
            for source, figures in zip(sources, found, strict=True):
                rate, cpu, faults = (statistics.median(column) for column in zip(*figures, strict=True))
                ratio = statistics.median(a.cpu_us / b.cpu_us for a, b in zip(found[0], figures, strict=True))
                print(f"{size:9} {rate:9.0f} {cpu:12.1f} {faults:12.1f} {ratio:6.2f}  {source}", flush=True)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
