"""Real workers and gateways whose requests miss their deadlines for one known cause each."""

from __future__ import annotations

import http.client
import json
import textwrap
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess
from isochrone.control.flights.asking import Target, Why, answer, ask
from isochrone.observe.flights.messages import GATEWAY, WORKER
from server_process import ServerProcess

#: Sleeps for its largest input, in ms, and at least 5; -1 makes many objects, -2 collects garbage among them.
_SLEEPER = """
import gc
import time


class Model:
    def infer(self, inputs):
        ms = inputs["ms"]
        largest, least = float(ms.max()), float(ms.min())
        if least == -1:
            gc.disable()
            self.ballast = [[] for _ in range(3_000_000)]
            gc.enable()
        elif least == -2:
            gc.collect()
        else:
            # At least so long that it never runs on the worker's event loop.
            time.sleep(max(0.005, {factor} * largest / 1000))
        return {{"y": ms}}
"""
_SECONDS = 30.0


def write_sleeper(repository: Path, *, batching: str = "", versions: tuple[float, ...] = (1.0,)) -> Path:
    """``versions``: of each, how much longer than asked it sleeps."""
    directory = repository / "sleeper"
    directory.mkdir(parents=True)
    size, dims = (8, "1") if batching else (0, "-1")
    (directory / "config.pbtxt").write_text(
        f'name: "sleeper"\nbackend: "python"\nmax_batch_size: {size}\n'
        f'input {{ name: "ms" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f"version_policy: {{ all {{ }} }}\n{batching}\n"
    )
    for number, factor in enumerate(versions, 1):
        (directory / str(number)).mkdir()
        (directory / str(number) / "model.py").write_text(textwrap.dedent(_SLEEPER).format(factor=factor))
    return repository


def send(
    server: ServerProcess | str,
    ms: float,
    request_id: str = "",
    *,
    deadline_ms: float = 0,
    version: str = "",
    batched: bool = False,
    headers: dict[str, str] | None = None,
) -> int:
    """The status of one request over REST."""
    address = server if isinstance(server, str) else server.http_url
    named = {"id": request_id} if request_id else {}
    shape = [1, 1] if batched else [1]
    body = {**named, "inputs": [{"name": "ms", "datatype": "FP32", "shape": shape, "data": [ms]}]}
    sent = {"content-type": "application/json", **(headers or {})}
    if deadline_ms:
        sent["x-request-timeout-ms"] = str(deadline_ms)
    path = f"/v2/models/sleeper{f'/versions/{version}' if version else ''}/infer"
    connection = http.client.HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), sent)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def page(server: ServerProcess, request_id: str) -> Any:
    """The first page of ``GET /v1/flights/ID``."""
    url = f"http://127.0.0.1:{server.metrics_port}/v1/flights/{request_id}"
    with urllib.request.urlopen(url, timeout=_SECONDS) as response:
        return json.load(response)["pages"][0]


def until(check: Callable[[], bool]) -> None:
    ends = time.monotonic() + _SECONDS
    while not check():
        assert time.monotonic() < ends
        time.sleep(0.005)


def is_over(server: ServerProcess, request_id: str) -> bool:
    flights = page(server, request_id)["flights"]
    return bool(flights) and not flights[0].get("is_under_way", False)


async def why(request_id: str, gateway: GatewayProcess | None, *workers: ServerProcess) -> Why | None:
    targets = [Target(GATEWAY, f"127.0.0.1:{gateway.metrics_port}")] if gateway is not None else []
    targets += [Target(WORKER, f"127.0.0.1:{worker.metrics_port}") for worker in workers]
    return answer(request_id, await ask(request_id, targets))
