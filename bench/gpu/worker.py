"""``isochrone serve`` for the GPU benches, from the interpreter that runs the bench: nothing need be installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_ports
from bench.worker.peers import Peer
from bench.worker.peers.process import HOST, answers, running

SERVE = (sys.executable, "-m", "isochrone", "serve")


@contextmanager
def serve(
    repository: Path, directory: Path, options: Sequence[str], timeout_seconds: float, metrics_port: int | None = None
) -> Iterator[Peer]:
    """The worker over a repository while the block runs; ``directory`` takes its log. Loads may take minutes.

    ``metrics_port``: of its metrics page; None: it has none.
    """
    http_port, grpc_port = free_ports(2)
    url = f"http://{HOST}:{http_port}"
    ports = ("--http-port", str(http_port), "--grpc-port", str(grpc_port))
    metrics = ("--no-allow-metrics",) if metrics_port is None else ("--metrics-port", str(metrics_port))
    command = [*SERVE, repository, "--host", HOST, *metrics, *ports, *options]
    log = directory / "worker.log"
    ready = f"{url}/v2/health/ready"
    with running("isochrone", command, lambda: answers(ready), log=log, timeout_seconds=timeout_seconds) as pid:
        yield Peer("worker", "", pid, log, (), http_url=url, grpc_address=f"{HOST}:{grpc_port}")
