"""A real ``isochrone serve`` in a process of its own, for tests of every folder.

The server picks free ports, and tells them in its "ready" line; the log is kept beside the test's files, and what went
wrong in it is part of the failure message. On the way out it gets SIGTERM and has to end well: status 0, no child left.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil

_START_SECONDS = 100.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.01


class ServerProcess:
    """One running server: its process, its ports, its log."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.process = process
        self.log_path = log_path
        self.http_port = 0
        self.grpc_port = 0
        self.metrics_port = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def http_url(self) -> str:
        """As tritonclient wants it: without a scheme."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_events(self) -> list[dict[str, Any]]:
        """The log's lines, decoded; a line that is not JSON (a crash) comes as {"event": line}."""
        events = []
        for line in self.log_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                events.append({"event": line})
        return events

    def resident_bytes(self) -> int:
        """Resident memory of the server and its children."""
        parent = psutil.Process(self.pid)
        return int(sum(process.memory_info().rss for process in [parent, *parent.children(recursive=True)]))

    def wait_ready(self) -> None:
        ends = time.monotonic() + _START_SECONDS
        while True:
            ready = next((event for event in self.log_events() if event.get("event") == "ready"), None)
            if ready is not None:
                self.http_port = ready.get("http", 0)
                self.grpc_port = ready.get("grpc", 0)
                self.metrics_port = ready.get("metrics", 0)
                return
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")
            if time.monotonic() > ends:
                raise AssertionError(f"the server is not ready after {_START_SECONDS} s:\n{self.log_text()}")
            time.sleep(_POLL_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; the exit status. The server has to be gone, with all its children, when this returns."""
        children = psutil.Process(self.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"SIGTERM did not end the server in {_STOP_SECONDS} s:\n{self.log_text()}") from None
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive, f"the server left processes behind: {alive}"
        return status

    def kill(self) -> None:
        """For the way out of a failed test: nothing may outlive it."""
        if self.process.poll() is not None:
            return
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()


class StartServer(Protocol):
    """The type of the fixture ``server_factory``."""

    def __call__(
        self, repository: Path, *arguments: str, check_exit: bool = True
    ) -> contextlib.AbstractContextManager[ServerProcess]: ...


@contextlib.contextmanager
def start_server(
    repository: Path, *arguments: str, check_exit: bool = True, log_path: Path | None = None
) -> Iterator[ServerProcess]:
    """Runs ``isochrone serve repository arguments…`` on free loopback ports until the block ends."""
    log_path = log_path or repository.with_name(repository.name + ".log")
    command = [
        str(Path(sys.executable).with_name("isochrone")),
        *("serve", str(repository), "--host", "127.0.0.1", "--log-json"),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"),
        *arguments,
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    server = ServerProcess(process, log_path)
    try:
        server.wait_ready()
        yield server
        if check_exit:
            status = server.terminate() if process.poll() is None else process.returncode
            assert status == 0, f"the server ended with {status}:\n{server.log_text()[-5000:]}"
    finally:
        server.kill()
