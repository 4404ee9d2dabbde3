"""A real ``isochrone pick`` in a process of its own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway_process import GatewayProcess, upstream_of
from server_process import ServerProcess
from watching import wait_for

_SECONDS = 60.0
_IN_FLIGHT = re.compile(r"^isochrone_gateway_worker_in_flight\{[^}]*\} (\S+)$", re.MULTILINE)


class PickerProcess(GatewayProcess):
    """One running picker."""

    picker_port = 0

    def wait_ready(self) -> None:
        ServerProcess.wait_ready(self)
        self.picker_port = next(event for event in self.log_events() if event.get("event") == "ready")["picker"]

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    def in_flight(self) -> float:
        """At all workers together."""
        return sum(map(float, _IN_FLIGHT.findall(self.metrics())))


@contextlib.contextmanager
def start_picker(
    workers: Sequence[ServerProcess | str], log_path: Path, *arguments: str, port: int = 0, check_exit: bool = True
) -> Iterator[PickerProcess]:
    """Runs ``isochrone pick`` in front of workers until the block ends."""
    command = [
        str(Path(sys.executable).with_name("isochrone")),
        *("pick", "--listen", f"127.0.0.1:{port}", "--health-port", "0", "--metrics-port", "0", "--log-json"),
        *("--seed", "1", "--probe-timeout", "30", *arguments),
        *(word for worker in workers for word in ("--upstream", upstream_of(worker))),
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    running = PickerProcess(process, log_path)
    try:
        running.wait_ready()
        running.wait_workers(len(workers))
        yield running
        if check_exit:
            wait_for(lambda: running.in_flight() == 0)
            assert running.terminate() == 0, running.log_text()[-5000:]
            assert not running.faults(), running.log_text()[-5000:]
    finally:
        running.kill()
