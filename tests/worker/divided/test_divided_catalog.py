"""Divided models in a catalog: they load after their divisions, stay while one of them is served, and must fit them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from isochrone.clock import now_ns
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError
from isochrone.models.divisions import Division, Divisions, Link, write_divisions
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog import drains
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.divided.runner import DividedRunner

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
#: Nobody listens there.
REMOTE = 'backend: "remote"\nparameters { key: "endpoints" value { string_value: "127.0.0.1:1" } }'
PLAN = Divisions(
    "core",
    Link(0.001, 1e6),
    (Division("core", "net.core", 0, 1_000, 8, 8, 0), Division("edge", "net.edge", 9_000_000, 0, 0, 0, 0)),
)


@pytest.fixture(autouse=True)
def _no_look_at_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the tests of ensembles: an unload would look at every object of this process."""
    monkeypatch.setattr(drains, "release_memory", lambda: None)


def write(repository: Path, name: str, text: str, tensors: str = TENSORS) -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'name: "{name}"\nmax_batch_size: 4\n{tensors}\n{text}\n')
    return version


def write_net(repository: Path, plan: Divisions = PLAN, models: str = "net.core,net.edge", more: str = "") -> Path:
    parameter = f'parameters {{ key: "models" value {{ string_value: "{models}" }} }}'
    version = write(repository, "net", f'backend: "divided"\n{parameter}\n{more}')
    (version / "divisions.json").write_bytes(write_divisions(plan))
    return version


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path, "net.edge", 'backend: "identity"')
    write(tmp_path, "net.core", REMOTE)
    return tmp_path


def run(repository: Path, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
    async def play() -> None:
        catalog = Catalog(Repository([repository]), None, 30)
        try:
            await scenario(catalog)
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))


def ready(catalog: Catalog) -> set[str]:
    return {name for name, _, state, _ in catalog.index() if state == "READY"}


async def ask(catalog: Catalog) -> object:
    values = np.ones((1, 2), np.float32)
    request = RecordedRequest(Plan("net", "", (("x", "FP32", (1, 2)),), None), {"x": values}, now_ns())
    catalog.find("net", "").submit(request)
    await until(lambda: request.answers)
    return request.answers[0]


def test_its_divisions_are_loaded_with_it_and_a_core_that_is_away_costs_nothing(repository: Path) -> None:
    write_net(repository)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("net")
        assert ready(catalog) == {"net", "net.core", "net.edge"}
        for _ in range(4):
            assert np.array_equal((await ask(catalog))["y"], np.ones((1, 2), np.float32))  # type: ignore[index]
        runner = catalog.find("net", "").runner
        assert isinstance(runner, DividedRunner)
        # By probes that find nobody: requests that fail together count once.
        await until(lambda: runner.watch.present == "edge")
        assert runner.snapshot().moves == {"lost": 1, "faster": 0}
        assert runner.fallbacks >= 1

    run(repository, scenario)


def test_it_stays_while_one_division_is_served_and_returns_with_the_first(repository: Path) -> None:
    write_net(repository)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("net")
        await catalog.unload("net.core")
        assert "net" in ready(catalog)
        assert isinstance(await ask(catalog), dict)
        await catalog.unload("net.edge")
        assert "net" not in ready(catalog)
        await catalog.load("net.edge")
        assert "net" in ready(catalog)
        assert isinstance(await ask(catalog), dict)

    run(repository, scenario)


def test_its_divisions_can_be_unloaded_with_it(repository: Path) -> None:
    write_net(repository)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("net")
        await catalog.unload("net", dependents=True)
        assert not ready(catalog)

    run(repository, scenario)


def test_a_division_that_is_missing_is_not_offered(repository: Path) -> None:
    gone = Division("cut-3", "net.cut-3", 1, 1, 1, 1, 1)
    write_net(repository, Divisions("cut-3", PLAN.link, (gone, *PLAN.divisions)), "net.cut-3,net.core,net.edge")

    async def scenario(catalog: Catalog) -> None:
        failed = await catalog.load_all({"net": LoadParameters()})
        assert set(failed) == {"net.cut-3"}
        runner = catalog.find("net", "").runner
        assert isinstance(runner, DividedRunner)
        assert "cut-3" not in runner.watch.times
        assert isinstance(await ask(catalog), dict)

    run(repository, scenario)


def fails(repository: Path, kind: type[IsochroneError], message: str) -> None:
    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(kind, match=message):
            await catalog.load("net")
        assert "net" not in ready(catalog)

    run(repository, scenario)


def test_a_division_that_does_not_fit_is_named(repository: Path) -> None:
    write_net(repository)
    config = repository / "net.edge" / "config.pbtxt"
    config.write_text(config.read_text().replace("FP32", "FP16"))
    fails(repository, InvalidArgument, "'net.edge', the model of a division: type or dims of input 'x' differ")


def test_a_smaller_batch_size_does_not_fit(repository: Path) -> None:
    write_net(repository)
    config = repository / "net.edge" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 4", "max_batch_size: 2"))
    fails(repository, InvalidArgument, "max_batch_size is 4, and the division's is 2")


def test_a_divided_model_that_is_its_own_division_is_rejected(repository: Path) -> None:
    write_net(repository, models="net,net.edge")
    fails(repository, InvalidArgument, "net")


def test_a_cycle_through_an_ensemble_is_rejected(repository: Path) -> None:
    write_net(repository)
    step = """
    platform: "ensemble"
    ensemble_scheduling { step { model_name: "net" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
    """
    config = repository / "net.edge" / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "identity"', step))
    fails(repository, InvalidArgument, "circular dependency")


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        ("", "", r'parameters\["models"\]: expected the models of its divisions'),
        ("net.edge", "", "they differ in net.core"),
        ("net.core,net.edge", "dynamic_batching { }", "dynamic_batching: expected none"),
        ("net.core,net.edge", "instance_group { count: 1 }", "a divided model has no instances of its own"),
        (
            "net.core,net.edge",
            'parameters { key: "margin" value { string_value: "10%" } }',
            r'parameters\["margin"\]: expected a share such as 0.1',
        ),
        (
            "net.core,net.edge",
            'parameters { key: "looks" value { string_value: "0" } }',
            r'parameters\["looks"\]: expected a whole number of at least 1',
        ),
    ],
)
def test_errors_of_the_configuration_name_the_key(repository: Path, models: str, more: str, message: str) -> None:
    write_net(repository, models=models, more=more)
    fails(repository, IsochroneError, message)


@pytest.mark.parametrize("content", [None, b"{}"])
def test_errors_of_the_file_name_it(repository: Path, content: bytes | None) -> None:
    file = write_net(repository) / "divisions.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    fails(repository, ConfigError if content else IsochroneError, "divisions.json")


SEQUENCES = "sequence_batching { }"


def test_a_model_of_sequences_is_no_division(repository: Path) -> None:
    write_net(repository)
    config = repository / "net.edge" / "config.pbtxt"
    config.write_text(f"{config.read_text()}\n{SEQUENCES}\n")
    fails(
        repository, ConfigError, "model 'net.edge': sequence_batching: expected none: the model belongs to a division"
    )


def test_nor_is_an_ensemble_with_a_step_of_sequences(repository: Path) -> None:
    write_net(repository)
    write(repository, "counter", f'backend: "identity"\n{SEQUENCES}')
    for name, step in (("inner", "counter"), ("net.edge", "inner")):
        text = f"""platform: "ensemble"
        ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1
          input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }} }}"""
        if name == "inner":
            write(repository, name, text)
        else:
            config = repository / name / "config.pbtxt"
            config.write_text(config.read_text().replace('backend: "identity"', text))
    fails(repository, ConfigError, "model 'counter': sequence_batching: expected none: the model belongs to a division")
