"""Callers with certificates: HTTP and gRPC, on connections that stay open and on new ones."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from development_ca import DevelopmentCa
from server_process import ServerProcess
from watching import wait_for

_BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "data": [1, 2]}]})


class TlsLoad:
    """Requests until the block ends. Every failure is kept, and nothing is tried twice."""

    def __init__(self, server: ServerProcess, ca: DevelopmentCa, name: str) -> None:
        self._server, self._ca, self._name = server, ca, name
        self._ends = threading.Event()
        self.failures: list[str] = []
        ways = {
            "HTTP, kept": self._http(is_kept=True),
            "HTTP, new": self._http(is_kept=False),
            "gRPC, kept": self._grpc(is_kept=True),
            "gRPC, new": self._grpc(is_kept=False),
        }
        self.answered = dict.fromkeys(ways, 0)
        self._threads = [threading.Thread(target=self._run, args=each) for each in ways.items()]

    def __enter__(self) -> TlsLoad:
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

    def _run(self, way: str, requests: Iterator[None]) -> None:
        try:
            for _ in requests:
                self.answered[way] += 1
                if self._ends.is_set():
                    break
        except Exception as error:
            self.failures.append(f"{way}: {type(error).__name__}: {error}")

    def _http(self, *, is_kept: bool) -> Iterator[None]:
        while True:
            context = self._ca.context(self._name)
            connection = http.client.HTTPSConnection(self._server.http_url, timeout=60, context=context)
            with contextlib.closing(connection):
                while True:
                    connection.request("POST", "/v2/models/identity_int32/infer", _BODY)
                    answer = connection.getresponse()
                    body = answer.read()
                    assert answer.status == 200, (answer.status, body)
                    yield
                    if not is_kept:
                        break

    def _grpc(self, *, is_kept: bool) -> Iterator[None]:
        message = service_pb2.ModelInferRequest(model_name="identity_int32")
        message.inputs.add(name="IN", datatype="INT32", shape=[2])
        message.raw_input_contents.append(bytes(8))
        while True:
            # A pool of its own: gRPC would share connections between channels to one address.
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(self._server.grpc_url, self._credentials(), options) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                while True:
                    stub.ModelInfer(message, timeout=60)
                    yield
                    if not is_kept:
                        break

    def _credentials(self) -> Any:
        while True:
            files = [Path(file) for file in (str(self._ca.ca), *self._ca.pair(self._name))]
            ca, certificate, key = (file.read_bytes() for file in files)
            # Certificate and key that fit: they may be replaced between two reads.
            self._ca.context(self._name)
            if [ca, certificate, key] == [file.read_bytes() for file in files]:
                return grpc.ssl_channel_credentials(ca, key, certificate)
