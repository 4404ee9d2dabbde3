"""A real S3 server (``rclone serve s3``) behind a proxy that counts, slows down and breaks what it sends.

The proxy corrects one thing, unless ``corrects_status`` is off: rclone (1.75) answers a request for a range with that
range, but with status 200, where RFC 9110 (15.3.7) and S3 have 206. Otherwise nothing here would test parallel and
resumed ranges. Everything else is the server's own: signatures, listings, ETags, ranges.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from isochrone.models.sources.manifest import MANIFEST

BUCKET = "bucket"
KEY, SECRET = "test-key", "test-secret"
_CHUNK = 1 << 18
_START_SECONDS = 30.0

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass(frozen=True)
class Served:
    """One GET that arrived."""

    path: str
    range: str
    number: int


@dataclass
class Record:
    gets: list[Served] = field(default_factory=list)
    #: Path → bytes of bodies that were sent.
    bytes: dict[str, int] = field(default_factory=dict)

    def of(self, ending: str) -> int:
        """Bytes sent of the objects whose path ends so."""
        return sum(count for path, count in self.bytes.items() if path.endswith(ending))

    def next_start(self, since: int) -> int:
        """Where the requests of the next worker begin: it reads the manifest first.

        Requests of a worker that was killed may arrive until then.
        """
        return next(number for number in range(since, len(self.gets)) if self.gets[number].path.endswith(MANIFEST))

    def requested(self, ending: str, since: int = 0) -> int:
        """Bytes of the ranges that were requested of these objects, without the first ``since`` requests of all."""
        ranges = [get.range.removeprefix("bytes=").split("-") for get in self.gets[since:] if get.path.endswith(ending)]
        return sum(int(last) - int(first) + 1 for first, last in ranges)


#: What happens to a GET: "" (nothing), "slow down", "truncate", "wrong byte", "reset", "hang" or "refuse".
Plan = Callable[[Served], str]


class FaultyProxy:
    """``plan`` may be replaced at any time; ``bytes_per_second`` limits each connection.

    ``corrects_status``: whether a range has status 206, as with S3, or what the server gave it.
    """

    def __init__(self, upstream: int) -> None:
        self.record = Record()
        self.plan: Plan = lambda served: ""
        self.bytes_per_second = 0.0
        self.corrects_status = True
        self._lock = threading.Lock()
        self._closing = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._pass_on(self, upstream)

            def do_HEAD(self) -> None:
                proxy._pass_on(self, upstream)

            def log_message(self, format: str, *words: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """Clients that go away are part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _pass_on(self, handler: BaseHTTPRequestHandler, upstream: int) -> None:
        path = handler.path.partition("?")[0]
        fault = ""
        if handler.command == "GET":
            with self._lock:
                served = Served(handler.path, handler.headers.get("Range", ""), len(self.record.gets) + 1)
                self.record.gets.append(served)
            fault = self.plan(served)
        if fault == "hang":
            self._closing.wait(60)
            handler.close_connection = True
            return
        if fault in ("slow down", "refuse"):
            handler.send_response(503 if fault == "slow down" else 403)
            handler.send_header("Content-Length", str(len(SLOW_DOWN)))
            handler.end_headers()
            handler.wfile.write(SLOW_DOWN)
            return
        connection = http.client.HTTPConnection("127.0.0.1", upstream, timeout=30)
        try:
            connection.request(handler.command, handler.path, headers=dict(handler.headers.items()))
            self._answer(handler, connection.getresponse(), path, fault)
        finally:
            connection.close()

    def _answer(self, handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, path: str, fault: str) -> None:
        is_partial = self.corrects_status and answer.status == 200 and answer.headers.get("Content-Range")
        handler.send_response(206 if is_partial else answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                handler.send_header(name, value)
        length = answer.headers.get("Content-Length")
        if length is None:
            handler.send_header("Connection", "close")
            handler.close_connection = True
        handler.end_headers()
        left = int(length or 0) // 2 if fault in ("truncate", "reset") else sys.maxsize
        begun, sent = time.monotonic(), 0
        while left and (chunk := answer.read(min(_CHUNK, left))):
            if fault == "wrong byte" and not sent:
                chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
            handler.wfile.write(chunk)
            left, sent = left - len(chunk), sent + len(chunk)
            with self._lock:
                self.record.bytes[path] = self.record.bytes.get(path, 0) + len(chunk)
            if self.bytes_per_second:
                self._closing.wait(max(0.0, sent / self.bytes_per_second - (time.monotonic() - begun)))
        if fault in ("truncate", "reset"):
            handler.close_connection = True
            if fault == "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.connection.close()


@dataclass
class S3:
    """A running store. Files below ``files`` are its objects: a folder there is a bucket."""

    files: Path
    proxy: FaultyProxy
    process: subprocess.Popen[bytes]
    #: Of rclone itself.
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """By which clients find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    @property
    def repository(self) -> Path:
        """The folder that ``url`` names."""
        return self.files / BUCKET / "models"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/models"


@contextlib.contextmanager
def s3_server(directory: Path, *arguments: str) -> Iterator[S3]:
    """Runs until the block ends. ``arguments`` are further ones of rclone."""
    files = directory / "objects"
    (files / BUCKET / "models").mkdir(parents=True)
    # Changes of the files must be seen at once: nobody tells the server.
    options = ("--auth-key", f"{KEY},{SECRET}", "--dir-cache-time", "0s", *arguments)
    with rclone(directory, "s3", files, *options) as (process, port):
        proxy = FaultyProxy(port)
        try:
            yield S3(files, proxy, process, port)
        finally:
            proxy.close()


@contextlib.contextmanager
def rclone(
    directory: Path, protocol: str, files: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``rclone serve PROTOCOL`` of a folder, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("rclone")), "serve", protocol, str(files)]
    command += ["--addr", f"127.0.0.1:{port}", "--config", os.devnull, *arguments]
    log = directory / f"rclone-{protocol}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        ends = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"rclone does not listen: {log.read_text(errors='replace')}")
            time.sleep(0.02)
        yield process, port
    finally:
        process.kill()
        process.wait()
