"""Load on a gateway from stock clients, which notes every request that fails: for tests that take workers away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import grpc
import numpy as np
from stock_clients import Array, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_process import ServerProcess
from watching import wait_for


class Load:
    """Clients in loops, one thread each: stock ones, or ``stream``. ``identity_int32`` must be served."""

    def __init__(self, gateway: ServerProcess, kinds: Sequence[str] = ("http", "grpc", "http", "grpc")) -> None:
        self._gateway = gateway
        self._over = threading.Event()
        self._answered = [0] * len(kinds)
        #: What went wrong: an error, or an answer that is not the one to the request.
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=pair) for pair in enumerate(kinds)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more(5)
        return self

    def __exit__(self, *reason: Any) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, count: int) -> None:
        """Waits until every client has got so many further answers."""
        wanted = [answered + count for answered in self._answered]
        wait_for(lambda: bool(self.failures) or all(map(int.__ge__, self._answered, wanted)))
        assert not self.failures, self.failures[:5]

    def _run(self, place: int, kind: str) -> None:
        with self._asking(kind) as ask:
            number = 0
            while not self._over.is_set():
                number += 1
                try:
                    back = ask(np.array([number, place], np.int32))
                except Exception as error:
                    self.failures.append(f"{kind} request {number}: {type(error).__name__}: {error}")
                    return
                if back != [number, place]:
                    self.failures.append(f"{kind} request {number}: answered {back}")
                self._answered[place] += 1

    @contextmanager
    def _asking(self, kind: str) -> Iterator[Callable[[Array], list[int]]]:
        if kind == "stream":
            with grpc.insecure_channel(self._gateway.grpc_url) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                yield lambda values: streamed(stub, values)
        else:
            with closing(StockClient(kind, self._gateway)) as client:
                yield lambda values: client.infer("identity_int32", {"IN": values}).as_numpy("OUT").tolist()


def streamed(stub: Any, values: Array) -> list[int]:
    """A whole stream for one request."""
    request = service_pb2.ModelInferRequest(model_name="identity_int32")
    request.inputs.add(name="IN", datatype="INT32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    (answer,) = stub.ModelStreamInfer(iter([request]), timeout=30)
    assert not answer.error_message, answer.error_message
    return [int(value) for value in np.frombuffer(answer.infer_response.raw_output_contents[0], np.int32)]
