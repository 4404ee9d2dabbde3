"""The present division of a divided model under load, while the link to the core becomes slow or dies, and recovers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

import isochrone
from divided_repository import expected, images, slow_edge, write_divided
from emulated_link import EmulatedLink
from isochrone.models.divisions import Link
from server_process import ServerProcess, StartServer

#: Of pictures: what crosses to the core is 48 KiB.
SIZE = 64
#: Far above what a busy machine adds to a time, and far below what the changed links do.
EDGE_SECONDS = 0.3
SECONDS = {"core": (0.0, 0.002), "edge": (EDGE_SECONDS, 0.0)}
PATIENCE = 60.0
CALLERS = 3

CHANGES: dict[str, Callable[[EmulatedLink], None]] = {
    "slow": lambda link: setattr(link, "delay", 0.4),
    "narrow": lambda link: setattr(link, "rate", 60_000.0),
    "cut": EmulatedLink.cut,
    "silent": EmulatedLink.silence,
}


def present(worker: ServerProcess) -> str:
    page = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics", trust_env=False).text
    (found,) = re.findall(r'^isochrone_division_present{.*division="([^"]+)".*} 1.0$', page, re.MULTILINE)
    return str(found)


def wait_for_present(worker: ServerProcess, division: str) -> float:
    """Seconds until it is the present division."""
    started = time.monotonic()
    while present(worker) != division:
        if time.monotonic() - started > PATIENCE:
            moves = [event for event in worker.log_events() if event.get("event") == "division moved"]
            raise AssertionError(f"{present(worker)} instead of {division} after {PATIENCE} s; moves: {moves}")
        time.sleep(0.02)
    return time.monotonic() - started


@contextmanager
def load(worker: ServerProcess) -> Iterator[list[float]]:
    """Requests without a header from several callers; no answer may be wrong or missing. Yields their times."""
    wanted = expected(1, SIZE)
    over = threading.Event()
    problems: list[str] = []
    times: list[float] = []

    def keep_asking() -> None:
        with isochrone.Client(worker.http_url) as client:
            while not over.is_set():
                started = time.monotonic()
                try:
                    found = client.infer("net", images(1, SIZE), deadline_ms=20_000)["scores"]
                    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
                    times.append(time.monotonic() - started)
                except Exception as error:  # whatever it is, a request failed
                    problems.append(f"{type(error).__name__}: {error}")
                time.sleep(0.01)

    callers = [threading.Thread(target=keep_asking) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield times
    finally:
        over.set()
        for caller in callers:
            caller.join()
    assert not problems, f"{len(problems)} of {len(problems) + len(times)} requests failed: {problems[:3]}"


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_the_division_follows_the_link_and_no_request_fails(
    change: str, server_factory: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_divided(tmp_path / "first", "127.0.0.1:1", SECONDS, size=SIZE)
    with server_factory(tmp_path / "first" / "core") as core, EmulatedLink(core.http_port) as link:
        target = tmp_path / "second"
        quick = {"look_ms": "100", "least_stay_ms": "500", "probe_ms": "500"}
        write_divided(target, link.address, SECONDS, size=SIZE, link=Link(0.002, 1e8), **quick)
        slow_edge(target, EDGE_SECONDS)
        with server_factory(target / "edge") as edge, load(edge) as times:
            while len(times) < 30:
                time.sleep(0.01)
            assert present(edge) == "core"
            CHANGES[change](link)
            away = wait_for_present(edge, "edge")
            count = len(times)
            while len(times) < count + 12:
                time.sleep(0.01)
            link.mend()
            back = wait_for_present(edge, "core")
            time.sleep(0.5)
            assert present(edge) == "core"
        with capsys.disabled():
            print(f"\n{change}: {len(times)} requests, to the edge after {away:.2f} s, back after {back:.2f} s")
