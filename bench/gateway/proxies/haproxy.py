"""Starts HAProxy, with one thread, in front of upstreams: HTTP/1.1 and gRPC (`proto h2` on both sides) on a port each.

No logs, no statistics page, connections to upstreams shared by all clients (`http-reuse always`). Must never get a
setting that makes it slower than a user's own.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.worker.models import IDENTITY_MODELS
from bench.worker.peers.process import HOST, Peer, PeerUnavailable, answers, running, scratch

_CONFIGURATION = """\
global
    nbthread 1
    maxconn 4000
    tune.h2.max-concurrent-streams 1024

defaults
    mode http
    balance leastconn
    http-reuse always
    option http-keep-alive
    timeout connect 250ms
    timeout client 60s
    timeout server 60s

listen http
    bind {host}:{http_port}
{http_servers}

listen grpc
    bind {host}:{grpc_port} proto h2
{grpc_servers}
"""


def binary() -> str:
    """The executable: Debian puts it where only root's PATH looks."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise PeerUnavailable("haproxy is not on PATH: run `make peers`, or install the Debian package haproxy")
    return found


def version() -> str:
    """As `haproxy -v` prints it."""
    output = subprocess.run([binary(), "-v"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+\.\d+\.\d+)", output)
    return found[1] if found else output.splitlines()[0]


def configuration(upstreams: Sequence[Upstream], http_port: int, grpc_port: int) -> str:
    """haproxy.cfg."""
    http = [f"    server s{n} {HOST}:{upstream.http_port}" for n, upstream in enumerate(upstreams)]
    grpc = [f"    server s{n} {HOST}:{upstream.grpc_port} proto h2" for n, upstream in enumerate(upstreams)]
    return _CONFIGURATION.format(
        host=HOST,
        http_port=http_port,
        grpc_port=grpc_port,
        http_servers="\n".join(http),
        grpc_servers="\n".join(grpc),
    )


@contextmanager
def start(upstreams: Sequence[Upstream]) -> Iterator[Peer]:
    """HAProxy while the block runs."""
    executable = binary()
    http_port, grpc_port = free_ports(2)
    url = f"http://{HOST}:{http_port}"
    with scratch("haproxy") as directory:
        file = directory / "haproxy.cfg"
        file.write_text(configuration(upstreams, http_port, grpc_port))
        log = directory / "haproxy.log"
        # -db: no daemon, no master process.
        command: list[str | Path] = [executable, "-db", "-f", file]
        with running("haproxy", command, lambda: answers(f"{url}/v2/health/ready"), log=log) as pid:
            yield Peer(
                name="haproxy",
                version=version(),
                pid=pid,
                log=log,
                models=IDENTITY_MODELS,
                http_url=url,
                grpc_address=f"{HOST}:{grpc_port}",
            )
