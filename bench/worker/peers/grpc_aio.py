"""Starts a plain grpc.aio server with one ModelInfer handler: what grpcio alone gives from Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_ports
from bench.worker.peers.process import (
    HOST,
    SERVERS,
    Peer,
    environment_python,
    installed_version,
    listens,
    running,
    scratch,
)


@contextmanager
def start() -> Iterator[Peer]:
    """The server while the block runs; it answers any model name with its input."""
    python = environment_python("")
    (port,) = free_ports(1)
    with scratch("grpc-aio") as directory:
        log = directory / "grpc_aio.log"
        command: list[str | Path] = [python, SERVERS / "grpc_aio_identity.py", str(port)]
        with running("grpc_aio", command, lambda: listens(port), log=log) as pid:
            yield Peer(
                name="grpc_aio",
                version=installed_version(python, "grpcio"),
                pid=pid,
                log=log,
                models=("identity", "identity_1mb"),
                grpc_address=f"{HOST}:{port}",
            )
