"""What is served, and how it changes: versions that leave, what the cache and the metrics know of them, and the log.

Real models in a real repository, on a real loop; no server around them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from queued_requests import RecordedRequest, rows_of
from runner_bench import until
from structlog.testing import capture_logs

from isochrone.clock import now_ns
from isochrone.errors import Internal, IsochroneError, ModelFailed
from isochrone.models.repository.repository import Repository
from isochrone.observe import logs
from isochrone.observe.metrics.exposition import Exposition
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.states import UNAVAILABLE
from isochrone.worker.response_cache import ResponseCache
from isochrone.worker.service import WorkerService
from sample_models import write_config, write_python

MODEL = """
    backend: "python"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
    version_policy { latest { num_versions: 1 } }
    instance_group { count: 1 }
"""
ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
    response_cache { enable: true }
    ensemble_scheduling { step { model_name: "step" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""


@pytest.fixture(autouse=True)
def _log_level_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


def times(factor: int) -> str:
    return f"""
        class Model:
            def infer(self, inputs):
                return {{"y": inputs["x"] * {factor}}}
    """


#: Waits for a file named "go" beside it when it is given a negative number; slow enough to have a thread of its own.
WAITING = """
    import pathlib, time

    class Model:
        def load(self, context):
            self.go = pathlib.Path(context.directory).parent / "go"

        def infer(self, inputs):
            time.sleep(0.001)
            if inputs["x"].min() < 0:
                (self.go.parent / "entered").touch()
                while not self.go.exists():
                    time.sleep(0.001)
            return {"y": inputs["x"]}
"""


def write_model(repository: Path, name: str, source: str, version: int = 1, more: str = "") -> None:
    write_config(repository / name, MODEL + more)
    write_python(repository / name, source, version)


def write_ensemble(repository: Path, name: str, text: str = ENSEMBLE) -> None:
    write_config(repository / name, text)
    (repository / name / "1").mkdir(exist_ok=True)


def send(catalog: Catalog, model: str, value: float) -> RecordedRequest:
    plan = Plan(model, "", (("x", "FP32", (1, 1)),), None)
    request = RecordedRequest(plan, {"x": rows_of(value)}, now_ns())
    catalog.find(model, "").submit(request)
    return request


async def ask(catalog: Catalog, model: str, value: float) -> Any:
    request = send(catalog, model, value)
    await until(lambda: request.answers)
    (answer,) = request.answers
    if isinstance(answer, IsochroneError):
        raise answer
    return answer["y"].item()


def run(
    repository: Path, scenario: Callable[[Catalog], Awaitable[None]], cache: ResponseCache | None = None
) -> list[Any]:
    """Plays a scenario; returns what was logged meanwhile."""

    async def play() -> None:
        catalog = Catalog(Repository([repository]), cache, 30)
        try:
            await scenario(catalog)
        finally:
            await catalog.close(5)

    with capture_logs() as lines:
        asyncio.run(asyncio.wait_for(play(), 100))
    return lines


def hits(catalog: Catalog, model: str) -> int:
    return catalog.find(model, "").statistics.snapshot().cache_hits


def test_a_cached_ensemble_answers_from_the_cache_until_a_step_changes(tmp_path: Path) -> None:
    write_model(tmp_path, "step", times(2))
    write_ensemble(tmp_path, "graph")

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("step")
        await catalog.load("graph")
        digest = catalog.find("graph", "").cache_digest()
        assert [await ask(catalog, "graph", 3) for _ in range(3)] == [6, 6, 6]
        assert hits(catalog, "graph") == 2
        # The ensemble's own files stay as they are; what it answers does not.
        write_model(tmp_path, "step", times(10))
        await catalog.load("step")
        assert catalog.find("graph", "").cache_digest() != digest
        assert await ask(catalog, "graph", 3) == 30
        assert hits(catalog, "graph") == 2
        assert await ask(catalog, "graph", 3) == 30
        assert hits(catalog, "graph") == 3

    run(tmp_path, scenario, ResponseCache(1 << 20))


def test_an_ensemble_of_ensembles_follows_the_innermost_step(tmp_path: Path) -> None:
    write_model(tmp_path, "step", times(2))
    write_ensemble(tmp_path, "inner", ENSEMBLE.replace("response_cache { enable: true }", ""))
    write_ensemble(tmp_path, "outer", ENSEMBLE.replace('"step"', '"inner"'))

    async def scenario(catalog: Catalog) -> None:
        for name in ("step", "inner", "outer"):
            await catalog.load(name)
        assert await ask(catalog, "outer", 3) == 6
        write_model(tmp_path, "step", times(10))
        await catalog.load("step")
        assert await ask(catalog, "outer", 3) == 30

    run(tmp_path, scenario, ResponseCache(1 << 20))


def test_a_cached_ensemble_without_its_step_says_so(tmp_path: Path) -> None:
    write_model(tmp_path, "step", times(2))
    write_ensemble(tmp_path, "graph")

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("step")
        await catalog.load("graph")
        assert await ask(catalog, "graph", 3) == 6
        graph = catalog.find("graph", "")
        await catalog.unload("step")
        with pytest.raises(IsochroneError, match="contains models that are not available or ambiguous: step"):
            await ask(catalog, "graph", 3)
        assert graph.in_flight == 0

    run(tmp_path, scenario, ResponseCache(1 << 20))


def service_of(catalog: Catalog, verbose: int = 0) -> WorkerService:
    return WorkerService(
        catalog,
        logs.Settings(logging.NullHandler(), verbose),
        server_name="test",
        allow_shared_memory=False,
        allow_control=True,
        strict_readiness=True,
    )


def labels_of(service: WorkerService, name: str) -> set[str]:
    """The versions of a model that any metric names."""
    body, _ = Exposition(lambda: service.snapshot()).render()
    lines = [line for line in body.decode().splitlines() if f'model="{name}"' in line]
    return {line.split('version="')[1].split('"')[0] for line in lines}


def test_a_version_that_is_gone_leaves_no_label_in_the_metrics(tmp_path: Path) -> None:
    write_model(tmp_path, "m", times(1))

    async def scenario(catalog: Catalog) -> None:
        service = service_of(catalog)
        await catalog.load("m")
        await ask(catalog, "m", 1)
        assert labels_of(service, "m") == {"1"}
        write_model(tmp_path, "m", times(2), version=2)
        await catalog.load("m")
        # The old version drains while the new one serves.
        await until(lambda: labels_of(service, "m") == {"2"})
        await catalog.unload("m")
        assert labels_of(service, "m") == set()
        await catalog.load("m")
        assert labels_of(service, "m") == {"2"}

    run(tmp_path, scenario)


@pytest.mark.parametrize("unload", [False, True])
def test_a_version_that_leaves_is_still_watched(tmp_path: Path, unload: bool) -> None:
    timeout = 'parameters { key: "execution_timeout_ms" value { string_value: "20" } }'
    write_model(tmp_path, "m", WAITING, more=timeout)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        served = catalog.find("m", "")
        stuck = send(catalog, "m", -1)
        await until((tmp_path / "m" / "entered").exists)
        if unload:
            leaving = asyncio.ensure_future(catalog.unload("m"))
        else:
            write_model(tmp_path, "m", times(2), version=2)
            leaving = asyncio.ensure_future(catalog.load("m"))
        await until(lambda: served in catalog._drains.versions)
        assert catalog._served.get(("m", "1")) is None
        while not stuck.answers:
            catalog.check_stuck()
            await asyncio.sleep(0)
        assert isinstance(stuck.answers[0], ModelFailed)
        assert "execution_timeout_ms (20)" in str(stuck.answers[0])
        await leaving
        await until(lambda: served not in catalog._drains.versions)
        (tmp_path / "m" / "go").touch()
        await until(lambda: "m-1-again" not in [thread.name for thread in threading.enumerate()])
        # Of the run that hung, and of the instance that was made in its place for nobody; their threads import, too.
        await until(lambda: not [name for name in list(sys.modules) if name.startswith("isochrone_model_m_1_")])

    run(tmp_path, scenario)


#: Like WAITING; a second load waits for a file named "load" beside the model.
LOADS_SLOWLY_AGAIN = WAITING.replace(
    'self.go = pathlib.Path(context.directory).parent / "go"',
    """self.go = pathlib.Path(context.directory).parent / "go"
            while (self.go.parent / "entered").exists() and not (self.go.parent / "load").exists():
                time.sleep(0.001)""",
)


def test_a_replacement_that_outlasts_the_server_is_freed(tmp_path: Path) -> None:
    timeout = 'parameters { key: "execution_timeout_ms" value { string_value: "20" } }'
    write_model(tmp_path, "slow", LOADS_SLOWLY_AGAIN, more=timeout)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("slow")
        stuck = send(catalog, "slow", -1)
        await until((tmp_path / "slow" / "entered").exists)
        while not stuck.answers:
            catalog.check_stuck()
            await asyncio.sleep(0)
        (tmp_path / "slow" / "go").touch()
        await until(lambda: "slow-1-0" not in [thread.name for thread in threading.enumerate()])

    run(tmp_path, scenario)
    (tmp_path / "slow" / "load").touch()
    (again,) = [thread for thread in threading.enumerate() if thread.name == "slow-1-again"]
    again.join()
    assert not [name for name in list(sys.modules) if name.startswith("isochrone_model_slow_1_")]


def test_a_model_that_fails_its_warm_up_is_not_ready_and_the_index_says_why(tmp_path: Path) -> None:
    source = """
        class Model:
            def infer(self, inputs):
                raise ValueError("row 0 has no weights")
    """
    write_model(tmp_path, "m", source)
    write_model(tmp_path, "n", source, more='parameters { key: "auto_warmup" value { string_value: "false" } }')

    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(ModelFailed, match="row 0 has no weights"):
            await catalog.load("m")
        ((_, _, state, reason),) = [row for row in catalog.index() if row[0] == "m"]
        assert state == UNAVAILABLE
        assert "row 0 has no weights" in reason
        assert not catalog.is_ready("m", "")
        # Its owner says that it cannot take zeros.
        await catalog.load("n")
        assert catalog.is_ready("n", "")

    lines = run(tmp_path, scenario)
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["event"], line["model"]) == ("model failed to load", "m")


def test_a_load_that_fails_is_logged_once_and_kept_for_the_index(tmp_path: Path) -> None:
    write_model(tmp_path, "m", "raise RuntimeError('no such weights')")

    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(ModelFailed):
            await catalog.load("m")
        assert catalog.index()[0][2] == UNAVAILABLE

    lines = run(tmp_path, scenario)
    (line,) = [line for line in lines if line["log_level"] in ("error", "warning")]
    assert line["event"] == "model failed to load"
    assert "no such weights" in line["error"]


@pytest.mark.parametrize("place", ["read", "recheck"])
def test_an_unexpected_error_of_one_model_does_not_end_the_loads_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("m", "n"):
        write_model(tmp_path, name, times(1))

    async def scenario(catalog: Catalog) -> None:
        broken = catalog.repository if place == "read" else catalog._dependents
        works = getattr(broken, place)

        def fails(name: str, *rest: Any) -> Any:
            if name == "m":
                raise OSError(28, "No space left on device")
            return works(name, *rest)

        monkeypatch.setattr(broken, place, fails)
        failed = await catalog.load_all({"m": LoadParameters(), "n": LoadParameters()})
        assert list(failed) == ["m"]
        assert isinstance(failed["m"], Internal)
        assert "No space left on device" in str(failed["m"])
        assert catalog.is_ready("n", "")
        assert "No space left on device" in {name: reason for name, _, _, reason in catalog.index()}["m"]

    run(tmp_path, scenario)


def test_what_was_assumed_is_one_line_and_the_rest_for_who_asks(tmp_path: Path) -> None:
    write_config(tmp_path / "m", MODEL.replace('backend: "python"', "").replace("instance_group { count: 1 }", ""))
    write_python(tmp_path / "m", times(1))

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")

    lines = run(tmp_path, scenario)
    (completed,) = [line for line in lines if "configuration completed" in line["event"]]
    assumed = [line for line in lines if line["event"] == "assumed"]
    assert completed["log_level"] == "info"
    assert (completed["model"], completed["assumed"]) == ("m", 2)
    assert [line["log_level"] for line in assumed] == ["debug", "debug"]
    (loaded,) = [line for line in lines if line["event"] == "instance loaded"]
    assert loaded["log_level"] == "debug"
    assert (loaded["model"], loaded["version"], loaded["instance"]) == ("m", 1, 0)
    assert set(loaded["estimates_us"]) == {1, 2, 4}


def test_every_request_has_its_line_from_verbose_level_two_on(tmp_path: Path) -> None:
    write_model(tmp_path, "m", times(2))

    async def scenario(catalog: Catalog) -> None:
        service = service_of(catalog)
        await catalog.load("m")

        async def through_the_service(value: float) -> None:
            request = RecordedRequest(Plan("m", "", (("x", "FP32", (1, 1)),), None), {"x": rows_of(value)}, now_ns())
            service.infer(request)
            await until(lambda: request.answers)
            assert request.answers[0]["y"].item() == 2 * value

        await through_the_service(1)
        service.log_settings({"log_verbose_level": 1})
        await through_the_service(2)
        with capture_logs() as lines:
            service.log_settings({"log_verbose_level": 2})
            await through_the_service(3)
            missing = RecordedRequest(Plan("nobody", "", (), None), {}, now_ns())
            with pytest.raises(IsochroneError):
                service.infer(missing)
            service.log_settings({"log_verbose_level": 0})
            await through_the_service(4)
        assert [(line["event"], line["outcome"]) for line in lines] == [
            ("request", "answered"),
            ("request", "not_found"),
        ]

    run(tmp_path, scenario)


def test_the_cache_counts_and_a_hits_time_in_the_queue_ends_where_the_look_up_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "step", times(2))
    write_ensemble(tmp_path, "graph")
    # Every look at the clock is one tick later.
    ticks = count(10**12)
    monkeypatch.setattr("isochrone.worker.served_version.now_ns", lambda: next(ticks))

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("step")
        await catalog.load("graph")
        first = send(catalog, "graph", 3)
        await until(lambda: first.answers)
        hit = send(catalog, "graph", 3)
        assert hit.answers
        assert hit.dispatched + 1 == hit.compute_start == hit.compute_end
        cache = catalog.cache_snapshot()
        assert cache is not None
        assert (cache.hits, cache.misses, cache.entries, cache.evictions, cache.lookup_ns) == (1, 1, 1, 0, 2)
        assert 0 < cache.bytes_used <= cache.limit_bytes == 1 << 20

    run(tmp_path, scenario, ResponseCache(1 << 20))
    run(tmp_path, lambda catalog: catalog.load("step"))
