"""Callers with signed tokens: on a connection that stays open, on new ones, by gRPC, and in gRPC streams."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from guarded_servers import inference
from tritonclient.grpc import service_pb2, service_pb2_grpc

from issued_tokens import signed
from server_process import ServerProcess
from watching import wait_for

PATH = "/v2/models/identity_fp32/infer"
AUDIENCE = "https://fleet.example"
_numbers = itertools.count()


def token_of(key: Any, issuer: str, **changes: Any) -> str:
    """A valid token that no server has seen yet."""
    now = time.time()
    stated = {"iss": issuer, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now, "jti": str(next(_numbers))}
    return signed(key, "ES256" if key.key_type == "EC" else "RS256", stated | changes)


def message() -> Any:
    made = service_pb2.ModelInferRequest(model_name="identity_fp32")
    made.inputs.add(name="IN", datatype="FP32", shape=[2])
    made.raw_input_contents.append(bytes(8))
    return made


class TokenLoad:
    """Requests to servers until the block ends, each with the next of ``token``'s. Every failure is kept."""

    def __init__(self, servers: dict[str, ServerProcess], token: Callable[[], str]) -> None:
        self._token = token
        self._ends = threading.Event()
        self.failures: list[str] = []
        ways = {"kept": self._kept, "new": self._new, "gRPC": self._grpc, "stream": self._stream}
        self.answered = {f"{way} to {name}": 0 for name in servers for way in ways}
        self._threads = [
            threading.Thread(target=self._run, args=(f"{way} to {name}", call, server))
            for name, server in servers.items()
            for way, call in ways.items()
        ]

    def __enter__(self) -> TokenLoad:
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
        wait_for(lambda: self.failures or all(self.answered[way] > seen[way] + 3 for way in seen))

    def _run(self, way: str, calls: Callable[[ServerProcess], Iterator[Any]], server: ServerProcess) -> None:
        try:
            with contextlib.closing(calls(server)) as answers:  # type: ignore[type-var]
                for _ in answers:
                    self.answered[way] += 1
                    # Many threads share two cores with the servers: the test is of tokens, not of rates.
                    if self._ends.wait(0.005):
                        return
        except Exception as error:
            self.failures.append(f"{way}: {type(error).__name__}: {error}")

    def _kept(self, server: ServerProcess) -> Iterator[Any]:
        with contextlib.closing(http.client.HTTPConnection(server.http_url, timeout=60)) as connection:
            while True:
                yield self._post(connection)

    def _new(self, server: ServerProcess) -> Iterator[Any]:
        while True:
            with contextlib.closing(http.client.HTTPConnection(server.http_url, timeout=60)) as connection:
                yield self._post(connection)

    def _post(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", PATH, json.dumps(inference()), {"authorization": f"Bearer {self._token()}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (answer.status, body)

    def _grpc(self, server: ServerProcess) -> Iterator[Any]:
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while True:
                yield stub.ModelInfer(message(), timeout=60, metadata=self._metadata())

    def _stream(self, server: ServerProcess) -> Iterator[Any]:
        """A new stream for each token, with two messages that are sent before its answers are read."""
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while True:
                sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
                for each in (message(), message(), None):
                    sent.put(each)
                answers = list(stub.ModelStreamInfer(iter(sent.get, None), timeout=60, metadata=self._metadata()))
                assert [answer.error_message for answer in answers] == ["", ""]
                yield answers

    def _metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token()}")]
