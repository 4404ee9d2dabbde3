"""Callers that go on while tokens, keys and certificates change: HTTP and gRPC, on kept connections and on new ones.

Every failure is kept, and nothing is tried twice: what a change must not cost is one valid request.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from development_ca import DevelopmentCa
from server_process import ServerProcess
from watching import wait_for


class CallerLoad:
    """Requests until the block ends. ``ways``: generators that yield after each answer."""

    def __init__(self, ways: dict[str, Generator[None, None, None]]) -> None:
        self._ends = threading.Event()
        self.failures: list[str] = []
        self.answered = dict.fromkeys(ways, 0)
        self._threads = [threading.Thread(target=self._run, args=each) for each in ways.items()]

    def __enter__(self) -> CallerLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def more(self) -> None:
        """Until every way has had some more answers."""
        seen = dict(self.answered)
        wait_for(lambda: self.failures or all(self.answered[way] > seen[way] + 5 for way in seen))

    def _run(self, way: str, answers: Generator[None, None, None]) -> None:
        try:
            with contextlib.closing(answers):
                for _ in answers:
                    self.answered[way] += 1
                    # Many threads share two cores with the servers: the tests are of changes, not of rates.
                    if self._ends.wait(0.005):
                        return
        except Exception as error:
            self.failures.append(f"{way}: {type(error).__name__}: {error}")


def token_load(servers: dict[str, ServerProcess], token: Callable[[], str]) -> CallerLoad:
    """Requests for FP32, each with the next of ``token``'s."""
    ways = {"kept": _kept, "new": _new, "gRPC": _grpc, "stream": _stream}
    return CallerLoad(
        {f"{way} to {name}": calls(server, token) for name, server in servers.items() for way, calls in ways.items()}
    )


def _kept(server: ServerProcess, token: Callable[[], str]) -> Generator[None, None, None]:
    with contextlib.closing(http.client.HTTPConnection(server.http_url, timeout=60)) as connection:
        while True:
            yield _post(connection, "FP32", _fields(token))


def _new(server: ServerProcess, token: Callable[[], str]) -> Generator[None, None, None]:
    while True:
        with contextlib.closing(http.client.HTTPConnection(server.http_url, timeout=60)) as connection:
            yield _post(connection, "FP32", _fields(token))


def _grpc(server: ServerProcess, token: Callable[[], str]) -> Generator[None, None, None]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            stub.ModelInfer(_message("FP32"), timeout=60, metadata=list(_fields(token).items()))
            yield


def _stream(server: ServerProcess, token: Callable[[], str]) -> Generator[None, None, None]:
    """A new stream for each token, with two messages that are sent before its answers are read."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
            for each in (_message("FP32"), _message("FP32"), None):
                sent.put(each)
            metadata = list(_fields(token).items())
            answers = list(stub.ModelStreamInfer(iter(sent.get, None), timeout=60, metadata=metadata))
            assert [answer.error_message for answer in answers] == ["", ""]
            yield


def tls_load(server: ServerProcess, ca: DevelopmentCa, name: str) -> CallerLoad:
    """Requests for INT32 by a caller with the certificate ``name``, whose files may be replaced."""
    return CallerLoad(
        {
            "HTTP, kept": _https(server, ca, name, is_kept=True),
            "HTTP, new": _https(server, ca, name, is_kept=False),
            "gRPC, kept": _secure_grpc(server, ca, name, is_kept=True),
            "gRPC, new": _secure_grpc(server, ca, name, is_kept=False),
        }
    )


def _https(server: ServerProcess, ca: DevelopmentCa, name: str, *, is_kept: bool) -> Generator[None, None, None]:
    while True:
        connection = http.client.HTTPSConnection(server.http_url, timeout=60, context=ca.context(name))
        with contextlib.closing(connection):
            while True:
                yield _post(connection, "INT32", {})
                if not is_kept:
                    break


def _secure_grpc(server: ServerProcess, ca: DevelopmentCa, name: str, *, is_kept: bool) -> Generator[None, None, None]:
    # A pool of its own: gRPC would share connections between channels to one address.
    options = [("grpc.use_local_subchannel_pool", 1)]
    while True:
        with grpc.secure_channel(server.grpc_url, _credentials(ca, name), options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while True:
                stub.ModelInfer(_message("INT32"), timeout=60)
                yield
                if not is_kept:
                    break


def _credentials(ca: DevelopmentCa, name: str) -> Any:
    while True:
        files = [Path(file) for file in (str(ca.ca), *ca.pair(name))]
        authorities, certificate, key = (file.read_bytes() for file in files)
        # Certificate and key that fit: they may be replaced between two reads.
        ca.context(name)
        if [authorities, certificate, key] == [file.read_bytes() for file in files]:
            return grpc.ssl_channel_credentials(authorities, key, certificate)


def _fields(token: Callable[[], str]) -> dict[str, str]:
    return {"authorization": f"Bearer {token()}"}


def _post(connection: http.client.HTTPConnection, datatype: str, fields: dict[str, str]) -> None:
    tensor = {"name": "IN", "datatype": datatype, "shape": [2], "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]})
    connection.request("POST", f"/v2/models/identity_{datatype.lower()}/infer", body, fields)
    answer = connection.getresponse()
    received = answer.read()
    assert answer.status == 200, (answer.status, received)


def _message(datatype: str) -> Any:
    message = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    message.inputs.add(name="IN", datatype=datatype, shape=[2])
    message.raw_input_contents.append(bytes(8))
    return message
