"""Starts BentoML with one identity service, through its own command line."""

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
    python = environment_python("bentoml")
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    with scratch("bentoml") as directory:
        log = directory / "bentoml.log"
        command: list[str | Path] = [
            *(python, "-m", "bentoml", "serve", "bentoml_identity:Identity"),
            *("--working-dir", SERVERS, "--host", HOST, "--port", str(port)),
        ]
        environment = {
            "BENTOML_HOME": str(directory / "home"),
            "BENTOML_DO_NOT_TRACK": "true",
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with running("bentoml", command, lambda: answers(f"{url}/readyz"), log=log, environment=environment) as pid:
            yield Peer(
                name="bentoml",
                version=installed_version(python, "bentoml"),
                pid=pid,
                log=log,
                models=("identity",),
                http_url=url,
                identity=json_request("/identity", {"values": [1.0] * 64}),
            )
