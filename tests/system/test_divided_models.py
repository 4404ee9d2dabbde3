"""Divided models on two real workers: the header chooses a division, and the answers do not depend on it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

import isochrone
from divided_repository import expected, images, write_divided
from isochrone.errors import InvalidArgument, Unavailable
from isochrone.models.divisions import Link
from server_process import ServerProcess, StartServer

SECONDS = {"edge": (0.002, 0.0), "cut-6": (0.001, 0.001), "cut-6-zstd": (0.002, 0.001), "core": (0.0, 0.002)}
DIVISIONS = (*SECONDS, "split")


@pytest.fixture(scope="module")
def pair(
    server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    directory = tmp_path_factory.mktemp("divided")
    write_divided(directory / "first", "127.0.0.1:1", SECONDS)
    with server_factory(directory / "first" / "core") as core:
        write_divided(directory / "second", core.http_url, SECONDS)
        with server_factory(directory / "second" / "edge") as edge:
            yield edge, core


def ask(client: isochrone.Client, rows: int = 1, division: str = "") -> Any:
    headers = {"x-isochrone-division": division} if division else None
    return client.infer("net", images(rows), headers=headers)["scores"]


@pytest.mark.parametrize("division", [*DIVISIONS, ""])
def test_every_division_computes_what_the_whole_model_computes(
    pair: tuple[ServerProcess, ServerProcess], division: str
) -> None:
    with isochrone.Client(pair[0].http_url) as client:
        for rows in (1, 3, 8):
            np.testing.assert_allclose(ask(client, rows, division), expected(rows), rtol=1e-4, atol=1e-5)


def runs(worker: ServerProcess) -> dict[str, float]:
    """Runs of each division."""
    return by_division(worker, "isochrone_division_requests_total")


def by_division(worker: ServerProcess, metric: str) -> dict[str, float]:
    page = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics", trust_env=False).text
    found = re.findall(rf'^{metric}{{.*division="([^"]+)".*}} (\S+)$', page, re.MULTILINE)
    assert found, page
    return {name: float(value) for name, value in found}


def runs_of(division: str) -> set[str]:
    """The divisions that may run a request which names one; of two cuts, the faster one at present is the split."""
    return {"cut-6", "cut-6-zstd"} if division == "split" else {division}


@pytest.mark.parametrize("division", DIVISIONS)
def test_the_header_chooses_the_division(pair: tuple[ServerProcess, ServerProcess], division: str) -> None:
    before = runs(pair[0])
    with isochrone.Client(pair[0].http_url) as client:
        for _ in range(5):
            ask(client, 1, division)
    after = runs(pair[0])
    assert sum(after[name] - before[name] for name in after) == 5
    assert {name for name in after if after[name] != before[name]} <= runs_of(division)


@pytest.mark.parametrize("division", DIVISIONS)
def test_metadata_of_grpc_chooses_the_division(pair: tuple[ServerProcess, ServerProcess], division: str) -> None:
    before = runs(pair[0])
    with triton.InferenceServerClient(pair[0].grpc_url) as client:
        given = triton.InferInput("image", [1, 3, 16, 16], "FP32")
        given.set_data_from_numpy(images()["image"])
        answer = client.infer("net", [given], headers={"x-isochrone-division": division})
    np.testing.assert_allclose(answer.as_numpy("scores"), expected(), rtol=1e-4, atol=1e-5)
    after = runs(pair[0])
    (ran,) = {name for name in after if after[name] != before[name]}
    assert ran in runs_of(division)


def test_an_unknown_division_is_rejected_with_the_names(pair: tuple[ServerProcess, ServerProcess]) -> None:
    with (
        isochrone.Client(pair[0].http_url) as client,
        pytest.raises(InvalidArgument, match="expected one of edge, split, core, cut-6, cut-6-zstd, given 'cut-7'"),
    ):
        ask(client, 1, "cut-7")


@pytest.mark.long
def test_a_division_that_is_unloaded_while_it_serves_costs_no_request(
    server_factory: StartServer, tmp_path: Path
) -> None:
    """The present division is unloaded and loaded again, several times, under requests that name none."""
    write_divided(tmp_path / "net", "127.0.0.1:1", {"edge": (0.001, 0.0), "cut-6": (1.0, 1.0)})
    flags = ("--model-control-mode", "explicit", "--load-model", "net")
    over = threading.Event()
    answers: list[Any] = []
    with server_factory(tmp_path / "net" / "core") as core:
        write_divided(tmp_path / "near", core.http_url, {"edge": (0.001, 0.0), "cut-6": (1.0, 1.0)})
        with server_factory(tmp_path / "near" / "edge", *flags) as edge:

            def keep_asking() -> None:
                with isochrone.Client(edge.http_url) as client:
                    while not over.is_set():
                        try:
                            answers.append(ask(client))
                        except Exception as error:  # whatever it is, a request failed
                            answers.append(error)

            caller = threading.Thread(target=keep_asking)
            caller.start()
            try:
                for action in ("unload", "load") * 3:
                    url = f"http://{edge.http_url}/v2/repository/models/net.edge/{action}"
                    assert httpx.post(url, json={}, trust_env=False, timeout=60).status_code == 200
            finally:
                over.set()
                caller.join()
            assert len(answers) > 10
            for answer in answers:
                np.testing.assert_allclose(answer, expected(), rtol=1e-4, atol=1e-5)
            counts = runs(edge)
            assert counts["edge"]
            assert counts["cut-6"]


def figure(worker: ServerProcess, metric: str) -> float:
    page = httpx.get(f"http://127.0.0.1:{worker.metrics_port}/metrics", trust_env=False).text
    (found,) = re.findall(rf"^{metric}{{.*}} (\S+)$", page, re.MULTILINE)
    return float(found)


def wait(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "not within a minute"
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_core_that_is_killed_costs_no_request(scheme: str, server_factory: StartServer, tmp_path: Path) -> None:
    #: A plan that prefers the core, and a link that nothing on loopback is as slow as.
    seconds = {"core": (0.0, 0.001), "cut-6": (0.001, 0.001), "edge": (5.0, 0.0)}
    planned = Link(1.0, 1e6)
    write_divided(tmp_path / "far", "127.0.0.1:1", seconds)
    with server_factory(tmp_path / "far" / "core", check_exit=False) as core:
        port = core.http_port if scheme == "http" else core.grpc_port
        write_divided(tmp_path / "near", f"{scheme}://127.0.0.1:{port}", seconds, link=planned, look_ms="100")
        with server_factory(tmp_path / "near" / "edge") as edge, isochrone.Client(edge.http_url) as client:
            for division in ("core", "cut-6"):
                ask(client, 1, division)
            wait(lambda: figure(edge, "isochrone_division_link_round_trip_seconds") < planned.round_trip)
            assert figure(edge, "isochrone_division_core_answers") == 1
            core.kill()
            for _ in range(30):
                np.testing.assert_allclose(ask(client), expected(), rtol=1e-4, atol=1e-5)
            wait(lambda: by_division(edge, "isochrone_division_present")["edge"] == 1)
            wait(lambda: figure(edge, "isochrone_division_core_answers") == 0)
            with pytest.raises(Unavailable, match="division 'core'"):
                ask(client, 1, "core")
            assert set(by_division(edge, "isochrone_division_late_seconds")) == {"edge"}


def test_answers_carry_the_time_of_each_kind(pair: tuple[ServerProcess, ServerProcess]) -> None:
    answer = httpx.post(
        f"http://{pair[0].http_url}/v2/models/net/infer",
        json={"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": [0.0] * 768}]},
        headers={"endpoint-load-metrics-format": "json"},
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    report = answer.headers["endpoint-load-metrics"]
    for kind in ("edge", "split", "core"):
        assert f"division_{kind}_us" in report
