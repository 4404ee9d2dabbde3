"""A fleet under load, for a real Prometheus: callers, and processes that hang."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.control.fleet_run import SupervisedFleet
from bench.control.models import SOLO

SECONDS = 90.0
CALLERS = 8
BODY = json.dumps({"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [21]}]})
#: Callers wait for late answers.
PATIENT: Mapping[str, str] = {"x-request-timeout-ms": "20000"}


def until(look: Callable[[], Any], what: str, last: Callable[[], Any] = lambda: "", seconds: float = SECONDS) -> Any:
    ends = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < ends, f"waited {seconds:g} s in vain for {what}: {last()}"
        time.sleep(0.2)
    return found


@contextmanager
def load(
    address: str,
    model: str = SOLO,
    headers: Mapping[str, str] = PATIENT,
    callers: int = CALLERS,
    pause_seconds: float = 0.0,
) -> Iterator[list[int]]:
    """Callers that send the next request when the last was answered. Gives the statuses."""
    stop, statuses = threading.Event(), []

    def call() -> None:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
        while not stop.is_set():
            try:
                connection.request("POST", f"/v2/models/{model}/infer", BODY, dict(headers))
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            except (OSError, http.client.HTTPException):
                connection.close()
            stop.wait(pause_seconds)
        connection.close()

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def stopped(fleet: SupervisedFleet, name: str) -> Iterator[None]:
    """A process that hangs: it answers nothing, and its lease expires."""
    process = fleet.pid(name)
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
