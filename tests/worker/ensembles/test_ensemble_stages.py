"""Ensembles whose stages the request pins: every step of one request is of the versions it asks for, or it fails.

Real models in a real repository, on a real loop; no server around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from queued_requests import RecordedRequest, rows_of
from runner_bench import until

from isochrone.clock import now_ns
from isochrone.control.agents.commitments import commitments
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.errors import IsochroneError, Unavailable
from isochrone.gateway.housekeeping import finished
from isochrone.models.repository.repository import Repository
from isochrone.protocol.headers.stages import parse_stages
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.response_cache import ResponseCache
from sample_models import write_config, write_python

_TENSORS = """
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
_SOURCE = """
    class Model:
        def infer(self, inputs):
            return {"y": inputs["x"] * 10 + %d}
"""
_STEP = """
    step { model_name: "%s" model_version: %d
      input_map { key: "x" value: "%s" } output_map { key: "y" value: "%s" } }
"""


def graph(*steps: tuple[str, int], more: str = "") -> str:
    """An ensemble that runs its steps one after the other."""
    tensors = ["x", *(f"t{index}" for index in range(1, len(steps))), "y"]
    made = [_STEP % (*step, *tensors[index : index + 2]) for index, step in enumerate(steps)]
    return f'platform: "ensemble"{_TENSORS}{more}\nensemble_scheduling {{ {"".join(made)} }}'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """``first`` and ``second`` in versions 1 and 2, each appending its digits: 0 → 11 and 22 when they agree."""
    for name in ("first", "second"):
        write_config(tmp_path / name, f'backend: "python"{_TENSORS}version_policy {{ all {{}} }}')
        for version in (1, 2):
            write_python(tmp_path / name, _SOURCE % version, version)
    graphs = {
        "graph": graph(("first", -1), ("second", -1)),
        "cached": graph(("first", -1), ("second", -1), more="response_cache { enable: true }"),
        "fixed": graph(("first", 1), ("second", -1)),
        "outer": graph(("graph", -1), ("second", -1)),
        "outer_cached": graph(("graph", -1), more="response_cache { enable: true }"),
    }
    for name, text in graphs.items():
        write_config(tmp_path / name, text)
        (tmp_path / name / "1").mkdir()
    return tmp_path


class StagedRequest(RecordedRequest):
    """Says which versions its stages are to be."""

    pinned: Mapping[str, str] | None = None

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.pinned


async def ask(catalog: Catalog, model: str, **stages: str) -> Any:
    request = StagedRequest(Plan(model, "", (("x", "FP32", (1, 1)),), None), {"x": rows_of(0)}, now_ns())
    request.pinned = stages or None
    catalog.find(model, "").submit(request)
    await until(lambda: request.answers)
    (answer,) = request.answers
    if isinstance(answer, IsochroneError):
        raise answer
    return answer["y"].item()


def run(repository: Path, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
    async def play() -> None:
        catalog = Catalog(Repository([repository]), ResponseCache(1 << 20), 30)
        try:
            for name in ("first", "second", "graph", "cached", "fixed", "outer", "outer_cached"):
                await catalog.load(name)
            await scenario(catalog)
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))


def test_a_request_says_which_versions_its_stages_are(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        assert await ask(catalog, "graph") == 22
        assert await ask(catalog, "graph", first="1", second="1") == 11
        assert await ask(catalog, "graph", first="2", second="2") == 22
        # Who names a part of the stages gets the newest of the others.
        assert await ask(catalog, "graph", first="1") == 12
        assert await ask(catalog, "graph", stranger="7") == 22
        # What the ensemble's configuration states stands.
        assert await ask(catalog, "fixed", first="2", second="1") == 11

    run(repository, scenario)


def test_ensembles_inside_ensembles_are_pinned_too(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        assert await ask(catalog, "outer") == 222
        assert await ask(catalog, "outer", graph="1", first="1", second="1") == 111
        assert await ask(catalog, "outer", graph="1", first="1", second="2") == 122

    run(repository, scenario)


def test_what_a_gateway_sends_for_an_ensemble_pins_the_stages_of_its_stages(repository: Path) -> None:
    def header(version: str) -> dict[str, str]:
        models = {
            "outer": Assignment("1", stages=("graph", "second")),
            "graph": Assignment("1", stages=("first", "second")),
            "first": Assignment(version),
            "second": Assignment(version),
        }
        return parse_stages(finished(commitments(EpochRecord(1, models)))["outer"].stages["1"])

    async def scenario(catalog: Catalog) -> None:
        assert await ask(catalog, "outer", **header("1")) == 111
        assert await ask(catalog, "outer", **header("2")) == 222

    run(repository, scenario)


@pytest.mark.parametrize("model", ["graph", "cached", "outer"])
def test_a_version_that_is_not_served_fails_the_request_by_its_name(repository: Path, model: str) -> None:
    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(Unavailable, match="asks for version 3 of step 'second', which is not served here"):
            await ask(catalog, model, first="1", second="3")
        await catalog.load("second", {"versions": "2"})
        with pytest.raises(Unavailable, match="asks for version 1 of step 'second'"):
            await ask(catalog, model, first="1", second="1")
        assert await ask(catalog, "graph", first="2", second="2") == 22
        for served in catalog.all_versions():
            assert served.in_flight == 0

    run(repository, scenario)


@pytest.mark.parametrize("model", ["cached", "outer_cached"])
def test_the_response_cache_tells_stages_apart(repository: Path, model: str) -> None:
    async def scenario(catalog: Catalog) -> None:
        pins = [{"first": str(one), "second": str(two)} for one in (1, 2) for two in (1, 2)]
        expected = [11, 12, 21, 22]
        for _ in range(2):
            assert [await ask(catalog, model, **pin) for pin in pins] == expected
        # Unpinned means the newest, which is in the cache already.
        assert await ask(catalog, model) == 22
        assert catalog.find(model, "").statistics.snapshot().cache_hits == 5

    run(repository, scenario)


def test_many_requests_at_once_keep_their_own_stages(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        async def client(version: str) -> None:
            for _ in range(50):
                assert await ask(catalog, "graph", first=version, second=version) == int(version * 2)
                assert await ask(catalog, "outer", first=version, second=version) == int(version * 3)

        await asyncio.gather(*(client(version) for version in "12" * 4))

    run(repository, scenario)
