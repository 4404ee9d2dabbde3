"""Load on a gateway from stock clients, which notes every request that fails: for tests that take workers away."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from stock_clients import StockClient
from watching import wait_for

from server_process import ServerProcess


class Load:
    """Clients in loops, one thread each, over HTTP and gRPC in turn. ``identity_int32`` must be served."""

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
        with closing(StockClient(kind, self._gateway)) as client:
            number = 0
            while not self._over.is_set():
                number += 1
                try:
                    back = client.infer("identity_int32", {"IN": np.array([number, place], np.int32)}).as_numpy("OUT")
                except Exception as error:
                    self.failures.append(f"{kind} request {number}: {type(error).__name__}: {error}")
                    return
                if back.tolist() != [number, place]:
                    self.failures.append(f"{kind} request {number}: answered {back.tolist()}")
                self._answered[place] += 1
