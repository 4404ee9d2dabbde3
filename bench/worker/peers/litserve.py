"""Starts LitServe with one identity API: one worker process, one API server process."""

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
    """The server while the block runs."""
    python = environment_python("litserve")
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    with scratch("litserve") as directory:
        log = directory / "litserve.log"
        command: list[str | Path] = [python, SERVERS / "litserve_identity.py", str(port)]
        with running("litserve", command, lambda: answers(f"{url}/health"), log=log) as pid:
            yield Peer(
                name="litserve",
                version=installed_version(python, "litserve"),
                pid=pid,
                log=log,
                models=("identity",),
                http_url=url,
                identity=json_request("/predict", {"values": [1.0] * 64}),
            )
