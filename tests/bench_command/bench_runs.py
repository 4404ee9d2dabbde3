"""Uses of ``isochrone bench`` in tests, in this process and as a process; counts of a worker; servers that stall."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from isochrone.bench.results.outcomes import Run, read_run
from isochrone.cli.main import app
from server_process import ServerProcess

MODELS = ("double", "slow", "accumulate", "repeat", "raises", "words")
SHORT = ("--warmup-seconds", "0", "--seconds", "0.4")


def bench(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == code, result.output
    return result.output


def measured(tmp_path: Path, *words: str, code: int = 0) -> tuple[dict[str, Any], Run]:
    """The JSON and the file of one use of the command."""
    path = tmp_path / "run.npz"
    output = bench(*words, "--json", "--output", str(path), code=code)
    return json.loads(output), read_run(path)


def successes(server: ServerProcess, model: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    found = re.findall(rf'^nv_inference_request_success\{{[^}}]*model="{model}"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return int(sum(map(float, found)))


def start(*words: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("isochrone")), "bench", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


class StallingServer:
    """Answers metadata; holds the answers of inference until ``release`` is set, then answers all at once."""

    METADATA = (
        b'{"name":"m","versions":["1"],"platform":"","outputs":[],'
        b'"inputs":[{"name":"X","datatype":"FP32","shape":[1]}]}'
    )

    def __init__(self) -> None:
        self.release = threading.Event()
        self.held = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length = 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                body = self.METADATA
                if first.startswith(b"POST"):
                    self.held += 1
                    self.release.wait(60)
                    body = b"{}"
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                except OSError:
                    return

    def close(self) -> None:
        self.release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()


@contextmanager
def stalling_server() -> Iterator[StallingServer]:
    server = StallingServer()
    try:
        yield server
    finally:
        server.close()
