"""A gateway that chooses divisions, in front of a divided worker whose core is lost under load: no request fails."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import isochrone
from divided_repository import expected, images, write_divided
from gateway_process import GatewayProcess, start_gateway
from server_process import ServerProcess, start_server

pytestmark = pytest.mark.long

SECONDS = {"core": (0.0, 0.001), "edge": (0.002, 0.0)}
RULES = "models: {net: {division: [core, edge]}}"
#: A request at this interval; the core is lost after some of them.
EVERY, BEFORE, REQUESTS = 0.05, 30, 160


class Load:
    """Requests that do not wait for each other."""

    def __init__(self, gateway: GatewayProcess, deadline_ms: float | None) -> None:
        self._url = gateway.http_url
        self._deadline_ms = deadline_ms
        self._scores = expected(1)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.outcomes: Counter[str] = Counter()

    def send(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._ask)
            thread.start()
            self._threads.append(thread)
            time.sleep(EVERY)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def _ask(self) -> None:
        outcome = "answered"
        try:
            with isochrone.Client(self._url) as client:
                scores: Any = client.infer("net", images(1), deadline_ms=self._deadline_ms)["scores"]
            np.testing.assert_allclose(scores, self._scores, rtol=1e-4, atol=1e-5)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        with self._lock:
            self.outcomes[outcome] += 1


def chosen(gateway: GatewayProcess) -> dict[str, float]:
    """Requests by the division that the gateway chose."""
    page = httpx.get(f"http://127.0.0.1:{gateway.metrics_port}/metrics", trust_env=False).text
    found = re.findall(r'^isochrone_gateway_division_requests_total{.*division="(\w+)".*} (\S+)$', page, re.MULTILINE)
    return {division: float(count) for division, count in found}


def lose(core: ServerProcess, how: str) -> None:
    if how == "stopped":
        os.kill(core.pid, signal.SIGSTOP)
    else:
        core.kill()


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("deadline_ms", [20_000.0, None])
def test_a_core_that_is_lost_costs_no_request(how: str, deadline_ms: float | None, tmp_path: Path) -> None:
    write_divided(tmp_path / "first", "127.0.0.1:1", SECONDS)
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    with start_server(tmp_path / "first" / "core", check_exit=False, log_path=tmp_path / "core.log") as core:
        write_divided(tmp_path / "second", core.http_url, SECONDS)
        with (
            start_server(tmp_path / "second" / "edge", log_path=tmp_path / "edge.log") as edge,
            start_gateway([edge], "--rules", str(rules), log_path=tmp_path / "gateway.log") as gateway,
        ):
            load = Load(gateway, deadline_ms)
            sent = 0
            while not chosen(gateway).get("core"):  # a busy machine may look like a slow core at first
                load.send(BEFORE)
                sent += BEFORE
            lose(core, how)
            try:
                load.send(REQUESTS)
                sent += REQUESTS
                load.wait()
            finally:
                if how == "stopped":
                    os.kill(core.pid, signal.SIGCONT)
    assert load.outcomes == {"answered": sent}
