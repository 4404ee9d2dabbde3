"""A server of several processes as a test sees it: its processes, and each one's own answers on its private socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families

from server_process import ServerProcess

#: Connections over which requests are sent, so that each of a few processes surely gets some: the kernel spreads them
#: by a hash of their addresses.
MANY = 24
ONE = np.array([1], np.int32)


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"waited {seconds} s in vain"
        time.sleep(0.01)


def serving(server: ServerProcess) -> dict[int, int]:
    """Number → pid of the processes that serve, by the log."""
    return {event["process"]: event["pid"] for event in server.log_events() if event.get("event") == "process ready"}


def coordinator(server: ServerProcess) -> psutil.Process:
    """The one of the supervisor's processes that serves nothing."""
    (found,) = [
        child
        for child in psutil.Process(server.pid).children()
        if any(each.laddr.endswith("coordinator.sock") for each in child.net_connections("unix"))
    ]
    return found


def private_socket(pid: int) -> str:
    (path,) = {
        str(each.laddr) for each in psutil.Process(pid).net_connections("unix") if "/process-" in str(each.laddr)
    }
    return path


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix-domain socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def ask_process(pid: int, method: str, target: str, value: Any = None) -> tuple[int, Any]:
    """One process's own answer: its status and JSON body."""
    connection = UnixConnection(private_socket(pid))
    try:
        connection.request(method, target, None if value is None else json.dumps(value))
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None
    finally:
        connection.close()


def ask(server: ServerProcess, method: str, target: str, value: Any = None, seconds: float = 60) -> tuple[int, Any]:
    """A call over HTTP, on a connection of its own."""
    body = b"" if value is None else json.dumps(value).encode()
    request = urllib.request.Request(f"http://{server.http_url}{target}", body if method == "POST" else None)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text else None


def is_ready(server: ServerProcess) -> bool:
    try:
        return ask(server, "GET", "/v2/health/ready")[0] == 200
    except OSError:
        # The connection was given to a process that has just been killed.
        return False


def identity_request(module: Any) -> list[Any]:
    given = module.InferInput("IN", [1], "INT32")
    given.set_data_from_numpy(ONE)
    return [given]


def infer_over_many_connections(server: ServerProcess, model: str, kind: str = "http", count: int = MANY) -> None:
    """One request over each of many connections; every one has to succeed."""
    for _ in range(count):
        if kind == "http":
            client: Any = tritonclient.http.InferenceServerClient(server.http_url)
            answer = client.infer(model, identity_request(tritonclient.http))
        else:
            # Channels of one address share a connection unless they are told otherwise.
            options = [("grpc.use_local_subchannel_pool", 1)]
            client = tritonclient.grpc.InferenceServerClient(server.grpc_url, channel_args=options)
            answer = client.infer(model, identity_request(tritonclient.grpc))
        assert answer.as_numpy("OUT").tolist() == [1]
        client.close()


def metrics_text(server: ServerProcess, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.metrics_port}/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def samples(server: ServerProcess, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of a name with these labels, by all of their labels."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text(server))
        for sample in family.samples
        if sample.name.removesuffix("_total") == name.removesuffix("_total") and labels.items() <= sample.labels.items()
    }
