"""A link that carries probes, and no tensors: requests that wait for the core run on the edge, and each is answered."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import isochrone
from divided_repository import expected, images, write_divided
from emulated_link import EmulatedLink
from isochrone.models.divisions import Link
from server_process import ServerProcess, StartServer

#: Of pictures: what crosses to the core is 48 KiB.
SIZE = 64
SECONDS = {"core": (0.0, 0.002), "edge": (0.02, 0.0)}
CALLERS = 8
DEADLINE_MS = 60_000.0


def metric(worker: ServerProcess, name: str, labels: str = "") -> float:
    page = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics", trust_env=False).text
    found = re.findall(rf"^{name}{{.*{labels}.*}} (\S+)$", page, re.MULTILINE)
    assert found, page
    return sum(map(float, found))


@pytest.mark.long
@pytest.mark.parametrize("division", ["", "prefer core"])
def test_requests_that_the_link_keeps_run_on_the_edge(
    division: str, server_factory: StartServer, tmp_path: Path
) -> None:
    write_divided(tmp_path / "first", "127.0.0.1:1", SECONDS, size=SIZE)
    with server_factory(tmp_path / "first" / "core") as core, EmulatedLink(core.http_port) as link:
        quick = {"look_ms": "100", "least_stay_ms": "500", "probe_ms": "500"}
        write_divided(tmp_path / "second", link.address, SECONDS, size=SIZE, link=Link(0.002, 1e8), **quick)
        with server_factory(tmp_path / "second" / "edge") as edge:
            answers: list[Any] = []
            headers = {"x-isochrone-division": division} if division else None

            def ask() -> None:
                with isochrone.Client(edge.http_url) as client:
                    try:
                        answer = client.infer("net", images(1, SIZE), deadline_ms=DEADLINE_MS, headers=headers)
                        answers.append(answer["scores"])
                    except Exception as error:  # whatever it is, a request failed
                        answers.append(error)

            ask()
            assert metric(edge, "isochrone_division_present", 'division="core"') == 1
            link.hold_large()
            callers = [threading.Thread(target=ask) for _ in range(CALLERS)]
            started = time.monotonic()
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert time.monotonic() - started < DEADLINE_MS / 1e3
            assert len(answers) == CALLERS + 1
            for answer in answers:
                np.testing.assert_allclose(answer, expected(1, SIZE), rtol=1e-3, atol=1e-4)
            assert metric(edge, "isochrone_division_fallbacks_total") == CALLERS
            assert metric(edge, "isochrone_division_core_answers") == 1
