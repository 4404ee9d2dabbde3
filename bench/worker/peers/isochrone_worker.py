"""Starts our own worker, `isochrone serve`, as one process: the same way the outside servers are started.

It gets the same configuration as the peers: metrics are off for Triton and for us, the rest is default.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_ports
from bench.worker.models import write_repository
from bench.worker.peers.process import (
    HOST,
    Peer,
    answers,
    installed_version,
    running,
    scratch,
)
from bench.worker.peers.triton_repository import MODEL_NAMES


@contextmanager
def start(
    onnx_files: Mapping[str, Path],
    *,
    intra_op_threads: int = 1,
    queue_timeout_microseconds: int | None = None,
) -> Iterator[Peer]:
    """The worker with every bench model while the block runs."""
    python = Path(sys.executable)
    with scratch("isochrone") as directory:
        repository = write_repository(
            directory / "models",
            onnx_files,
            intra_op_threads=intra_op_threads,
            queue_timeout_microseconds=queue_timeout_microseconds,
        )
        http_port, grpc_port = free_ports(2)
        url = f"http://{HOST}:{http_port}"
        log = directory / "isochrone.log"
        command: list[str | Path] = [
            *(python.parent / "isochrone", "serve", repository, "--host", HOST, "--no-allow-metrics"),
            *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        ]
        with running("isochrone", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            yield Peer(
                name="isochrone",
                version=installed_version(python, "isochrone"),
                pid=pid,
                log=log,
                models=MODEL_NAMES,
                http_url=url,
                grpc_address=f"{HOST}:{grpc_port}",
            )
