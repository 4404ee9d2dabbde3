"""A real ``isochrone gateway`` in a process of its own, for tests of every folder.

As ``server_process`` does for a worker: free ports, told by the "ready" line; SIGTERM at the end, and status 0. Its log
must hold no fault of its own: an exception in a callback harms nobody at once, and would otherwise go unseen.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from server_process import ServerProcess

_WORKERS_SECONDS = 60.0


class GatewayProcess(ServerProcess):
    """One running gateway. Both protocols are on its one port."""

    def wait_ready(self) -> None:
        super().wait_ready()
        ready = next(event for event in self.log_events() if event.get("event") == "ready")
        self.http_port = self.grpc_port = ready["gateway"]

    def wait_workers(self, count: int) -> None:
        """Until so many workers have been found ready; the gateway itself is, with the first one."""
        ends = time.monotonic() + _WORKERS_SECONDS
        while sum(event.get("event") == "a worker is ready" for event in self.log_events()) < count:
            assert time.monotonic() < ends, self.log_text()
            time.sleep(0.01)

    def faults(self) -> list[str]:
        """Lines of the log that only a fault of the gateway's own can cause."""
        signs = ("Traceback", "unexpectedly", "Exception in callback", "was never retrieved", '"level": "error"')
        return [line for line in self.log_text().splitlines() if any(sign in line for sign in signs)]


@dataclass(frozen=True)
class Fleet:
    """A gateway and what is behind it."""

    gateway: GatewayProcess
    workers: tuple[ServerProcess, ...]


class StartGateway(Protocol):
    """The type of the fixture ``gateway_factory``."""

    def __call__(
        self, upstreams: Sequence[ServerProcess | str], *arguments: str, check_exit: bool = True
    ) -> contextlib.AbstractContextManager[GatewayProcess]: ...


def upstream_of(server: ServerProcess | str) -> str:
    """As ``--upstream`` wants it; one of our workers speaks both protocols on each of its ports."""
    return server if isinstance(server, str) else server.http_url


@contextlib.contextmanager
def start_gateway(
    upstreams: Sequence[ServerProcess | str],
    *arguments: str,
    log_path: Path,
    check_exit: bool = True,
    prefix: Sequence[str] = (),
) -> Iterator[GatewayProcess]:
    """Runs ``isochrone gateway`` in front of ``upstreams`` on free loopback ports until the block ends. ``prefix``
    stands before its command."""
    command = [
        *prefix,
        str(Path(sys.executable).with_name("isochrone")),
        *("gateway", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--log-json", "--seed", "1"),
        # What is late on a busy machine takes no worker away; tests of silent workers choose a shorter time.
        *("--probe-timeout", "30", "--limit", "connect_timeout=10"),
        *(word for upstream in upstreams for word in ("--upstream", upstream_of(upstream))),
        *arguments,
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    gateway = GatewayProcess(process, log_path)
    try:
        gateway.wait_ready()
        # It waits only a second itself. Others than real workers may be meant to be unreachable.
        gateway.wait_workers(sum(isinstance(each, ServerProcess) for each in upstreams))
        yield gateway
        if check_exit:
            status = gateway.terminate() if process.poll() is None else process.returncode
            assert status == 0, f"the gateway ended with {status}:\n{gateway.log_text()[-5000:]}"
            assert not gateway.faults(), gateway.log_text()[-5000:]
    finally:
        gateway.kill()
