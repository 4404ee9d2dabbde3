"""What a test sees of a server from outside while it works: its metrics page and its load report."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sample_models import release_file
from server_process import ServerProcess


def metrics_page(server: ServerProcess, accept: str = "", context: ssl.SSLContext | None = None) -> str:
    """``context``: of a client, for a server with TLS."""
    scheme = "http" if context is None else "https"
    url = f"{scheme}://127.0.0.1:{server.metrics_port}/metrics"
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        text: str = answer.read().decode()
    return text


def metrics(server: ServerProcess, context: ssl.SSLContext | None = None) -> list[Metric]:
    return list(text_string_to_metric_families(metrics_page(server, context=context)))


def gauge(server: ServerProcess, name: str, model: str) -> float:
    """A sample of one model, summed over what other labels tell apart; 0 where there is none."""
    return float(
        sum(
            sample.value
            for family in metrics(server)
            for sample in family.samples
            if sample.name == name and sample.labels.get("model") == model
        )
    )


def total(server: ServerProcess, name: str) -> float:
    """All samples of a name, summed."""
    return float(sum(each.value for family in metrics(server) for each in family.samples if each.name == name))


def connections(server: ServerProcess) -> float:
    """Those that the server has; one that it has closed has been read to its end."""
    return total(server, "isochrone_connections")


def holds_from(server: ServerProcess, address: str) -> bool:
    """Whether the server's process has a socket to this address, also in the middle of a handshake."""
    sockets = psutil.Process(server.pid).net_connections("tcp")
    return any(each.raddr and each.raddr[0] == address for each in sockets)


def load_now(server: ServerProcess) -> dict[str, Any]:
    """The server's ORCA report: the figures it names itself."""
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/identity_int32/infer",
        body,
        headers={"endpoint-load-metrics-format": "json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.headers["endpoint-load-metrics"]
    report: dict[str, Any] = json.loads(text.removeprefix("JSON "))
    return dict(report["named_metrics"])


def release_one(repository: Path, model: str = "slow") -> None:
    """Ends one held run of a slow model (``sample_models.HELD``); returns when the run has noticed."""
    file = release_file(repository, model)
    file.touch()
    wait_for(lambda: not file.exists())


def release_until(holds: Callable[[], object], repository: Path, model: str = "slow") -> None:
    """Ends held runs of a slow model until something holds."""
    file = release_file(repository, model)

    def look() -> object:
        file.touch()
        return holds()

    try:
        wait_for(look)
    finally:
        file.unlink(missing_ok=True)


def wait_for(holds: Callable[[], object], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"waited {seconds} s in vain"
        time.sleep(0.005)
