"""Starts Ray Serve with one identity deployment behind its own HTTP proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ports import free_ports
from bench.worker.payloads import json_request
from bench.worker.peers.process import (
    HOST,
    SERVERS,
    Peer,
    answers,
    environment_python,
    installed_version,
    running,
    scratch,
)


@contextmanager
def start() -> Iterator[Peer]:
    """One replica, one proxy, on a cluster of this machine alone, while the block runs."""
    python = environment_python("ray")
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    with scratch("ray") as directory:
        log = directory / "ray_serve.log"
        command: list[str | Path] = [python, SERVERS / "ray_identity.py", str(port), directory]
        with running(
            "ray_serve",
            command,
            # The proxy is healthy before the deployment has its route; the server reports when it has.
            lambda: (directory / "ready").exists() and answers(f"{url}/-/healthz"),
            log=log,
            environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
            timeout_seconds=120.0,
        ) as pid:
            yield Peer(
                name="ray_serve",
                version=installed_version(python, "ray"),
                pid=pid,
                log=log,
                models=("identity",),
                http_url=url,
                identity=json_request("/identity", {"values": [1.0] * 64}),
            )
