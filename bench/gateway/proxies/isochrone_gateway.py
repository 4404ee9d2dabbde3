"""Starts our own gateway, `isochrone gateway`, as one process in front of upstreams: one port for both protocols.

It gets no settings beyond those of the other proxies.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.worker.models import IDENTITY_MODELS
from bench.worker.peers.process import HOST, Peer, answers, installed_version, running, scratch


@contextmanager
def start(
    upstreams: Sequence[Upstream], policy: str = "prequal", *, model: str = "", options: Sequence[str] = ()
) -> Iterator[Peer]:
    """The gateway while the block runs; `model`, if given, must be ready before it counts as started."""
    python = Path(sys.executable)
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    ready = f"{url}/v2/models/{model}/ready" if model else f"{url}/v2/health/ready"
    with scratch("gateway") as directory:
        log = directory / "gateway.log"
        command: list[str | Path] = [
            *(python.parent / "isochrone", "gateway", "--listen", f"{HOST}:{port}", "--policy", policy),
            *(
                word
                for upstream in upstreams
                for word in ("--upstream", f"{HOST}:{upstream.http_port},grpc={upstream.grpc_port}")
            ),
            *("--metrics-port", "-1"),
            *options,
        ]
        with running("isochrone", command, lambda: answers(ready), log=log, timeout_seconds=20) as pid:
            yield Peer(
                name="isochrone",
                version=installed_version(python, "isochrone"),
                pid=pid,
                log=log,
                models=IDENTITY_MODELS,
                http_url=url,
                grpc_address=f"{HOST}:{port}",
            )
