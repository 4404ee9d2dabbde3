"""Ensembles and the models of their steps in one catalog: what loads, goes and comes back with what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from ensemble_repository import Ensemble, Model, Step, tensor, write_repository
from isochrone.clock import now_ns
from isochrone.errors import InvalidArgument, Unavailable
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog import drains
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.dependencies import load_order
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.polling import poll
from isochrone.worker.catalog.states import UNAVAILABLE

MODEL = Model((tensor("IN"),), (tensor("OUT"),))
X, Y = (tensor("X"),), (tensor("Y"),)
ENSEMBLES = {
    "both": Ensemble(X, Y, (Step("first", {"IN": "X"}, {"OUT": "t"}), Step("second", {"IN": "t"}, {"OUT": "Y"}))),
    "alone": Ensemble(X, Y, (Step("second", {"IN": "X"}, {"OUT": "Y"}),)),
    "outer": Ensemble(X, Y, (Step("both", {"X": "X"}, {"Y": "Y"}),)),
    "fixed": Ensemble(X, Y, (Step("numbered", {"IN": "X"}, {"OUT": "Y"}, 1),)),
    "waits": Ensemble(X, Y, (Step("first", {"IN": "X"}, {"OUT": "t"}), Step("late", {"IN": "t"}, {"OUT": "Y"}))),
}
MODELS = {
    "first": MODEL,
    "second": MODEL,
    "numbered": Model((tensor("IN"),), (tensor("OUT"),), versions=(1, 2), more="version_policy { all { } }"),
}


@pytest.fixture(autouse=True)
def _no_look_at_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unload collects garbage among all objects of its process. This one has the modules of every test: each unload
    would take half a second. ``test_lifecycle`` unloads in a process of a worker's own, and looks at its memory."""
    monkeypatch.setattr(drains, "release_memory", lambda: None)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_repository(tmp_path, {**MODELS, **ENSEMBLES}, "worker")


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


def reason(catalog: Catalog, model: str) -> str:
    ((state, why),) = {row[2:] for row in catalog.index() if row[0] == model}
    assert state == UNAVAILABLE
    return why


async def ask(catalog: Catalog, model: str) -> list[float]:
    request = RecordedRequest(Plan(model, "", (("X", "FP32", (4,)),), None), {"X": np.ones(4, np.float32)}, now_ns())
    catalog.find(model, "").submit(request)
    await until(lambda: request.answers)
    (answer,) = request.answers
    return list(answer["Y"])


def test_an_ensemble_brings_its_steps(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("outer")
        assert ready(catalog) == {"outer", "both", "first", "second"}
        assert await ask(catalog, "outer") == [1, 1, 1, 1]

    run(repository, scenario)


def test_steps_that_were_loaded_in_a_particular_way_are_left_as_they_are(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("numbered", {"versions": "1"})
        served = catalog.find("numbered", "1")
        await catalog.load("fixed")
        assert catalog.find("numbered", "") is served

    run(repository, scenario)


def test_other_steps_are_loaded_again_where_their_files_changed(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("both")
        first, second = catalog.find("first", ""), catalog.find("second", "")
        source = repository / "second" / "1" / "model.py"
        source.write_text(source.read_text().replace("array for", "array * 2 for"))
        await catalog.load("both")
        assert await ask(catalog, "both") == [2, 2, 2, 2]
        assert catalog.find("first", "") is first
        assert catalog.find("second", "") is not second

    run(repository, scenario)


def test_without_a_step_the_ensemble_is_withdrawn_and_comes_back_with_it(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("outer")
        await catalog.unload("first")
        assert ready(catalog) == {"second"}
        with pytest.raises(Unavailable, match="Request for unknown model: 'outer' has no available versions"):
            catalog.find("outer", "")
        await until(lambda: "ambiguous: first" in reason(catalog, "both"))
        await until(lambda: "ambiguous: both" in reason(catalog, "outer"))
        await catalog.load("first")
        assert ready(catalog) == {"outer", "both", "first", "second"}
        assert await ask(catalog, "outer") == [1, 1, 1, 1]

    run(repository, scenario)


def test_a_request_in_the_ensemble_is_finished_before_its_step_goes(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("both")
        answer = asyncio.ensure_future(ask(catalog, "both"))
        await asyncio.sleep(0)
        await catalog.unload("first")
        assert await answer == [1, 1, 1, 1]

    run(repository, scenario)


def test_an_ensemble_that_was_unloaded_does_not_come_back(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("both")
        await catalog.unload("first")
        await catalog.unload("both")
        await catalog.load("first")
        assert ready(catalog) == {"first", "second"}
        assert reason(catalog, "both").startswith("unloaded")

    run(repository, scenario)


def test_an_ensemble_that_failed_for_a_step_waits_for_it(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(
            InvalidArgument, match="ensemble waits contains models that are not available or ambiguous: late"
        ):
            await catalog.load("waits")
        write_repository(repository, {"late": MODEL}, "worker")
        await catalog.load("late")
        assert ready(catalog) == {"first", "late", "waits"}

    run(repository, scenario)


def test_a_failed_step_is_tried_again_with_the_ensemble(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        source = repository / "first" / "1" / "model.py"
        good = source.read_text()
        source.write_text("raise RuntimeError('no such weights')")
        with pytest.raises(InvalidArgument, match=r"depends on 'first' which has no loaded version.*no such weights"):
            await catalog.load("both")
        source.write_text(good)
        await catalog.load("both")
        assert ready(catalog) == {"both", "first", "second"}

    run(repository, scenario)


@pytest.mark.parametrize(
    ("loads", "unload", "left"),
    [
        (["both"], "both", set()),
        (["first", "both"], "both", {"first"}),
        # Asked for by name, if later than the ensemble.
        (["both", "first"], "both", {"first"}),
        (["both", "alone"], "both", {"alone", "second"}),
        (["outer"], "outer", set()),
        (["outer"], "first", {"second"}),
    ],
)
def test_what_nobody_needs_goes_with_the_ensemble(
    repository: Path, loads: list[str], unload: str, left: set[str]
) -> None:
    async def scenario(catalog: Catalog) -> None:
        for name in loads:
            await catalog.load(name)
        await catalog.unload(unload, dependents=True)
        assert ready(catalog) == left

    run(repository, scenario)


def test_without_asking_for_it_the_steps_stay(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("both")
        await catalog.unload("both")
        assert ready(catalog) == {"first", "second"}

    run(repository, scenario)


@pytest.mark.parametrize("ensemble", ["both", "outer"])
def test_steps_of_an_ensemble_that_waits_go_with_it(repository: Path, ensemble: str) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load(ensemble)
        await catalog.unload("first")
        await catalog.unload(ensemble, dependents=True)
        assert ready(catalog) == set()
        # Nothing waits any more.
        await catalog.load("first")
        await catalog.load("second")
        assert ready(catalog) == {"first", "second"}

    run(repository, scenario)


def test_a_step_that_no_longer_fits_takes_the_ensemble_away(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        config = repository / "second" / "config.pbtxt"
        good = config.read_text()
        await catalog.load("both")
        config.write_text(good.replace("dims: [4]", "dims: [5]"))
        await catalog.load("second")
        await until(lambda: "inconsistent shape: [4] is inferred from model first" in reason(catalog, "both"))
        with pytest.raises(InvalidArgument, match="inconsistent shape"):
            await catalog.load("both")
        config.write_text(good)
        await catalog.load("second")
        assert ready(catalog) == {"both", "first", "second"}

    run(repository, scenario)


def test_a_step_that_becomes_decoupled_makes_the_ensemble_so(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("outer")
        assert not catalog.find("outer", "").decoupled
        digest = catalog.find("outer", "").digest
        body = "def answer(given):\n    yield {'OUT': given['IN']}\n"
        write_repository(
            repository, {"second": Model((tensor("IN"),), (tensor("OUT"),), body=body, decoupled=True)}, "worker"
        )
        await catalog.load("second")
        assert catalog.find("both", "").decoupled
        assert catalog.find("outer", "").decoupled
        assert catalog.find("outer", "").description.config.model_transaction_policy.decoupled
        assert catalog.find("outer", "").digest == digest

    run(repository, scenario)


def test_a_new_version_beside_the_old_one_leaves_the_ensemble_alone(repository: Path) -> None:
    """A rollout prepares a version that no request uses yet: served ensembles do not depend on it."""

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("numbered", {"versions": "1"})
        await catalog.load("fixed")
        served = catalog.find("fixed", "")
        await catalog.load("numbered", {"versions": "1,2"})
        assert catalog.find("fixed", "") is served
        await catalog.load("numbered", {"versions": "2"})
        assert ready(catalog) == {"numbered"}
        await until(lambda: "whose required version 1 is not loaded" in reason(catalog, "fixed"))
        await catalog.load("numbered", {"versions": "1,2"})
        assert ready(catalog) == {"numbered", "fixed"}

    run(repository, scenario)


def test_ensembles_and_steps_load_in_any_order_at_once(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        names = ["outer", "alone", "both", "second", "first"]
        await asyncio.gather(*(catalog.load(name) for name in names))
        assert ready(catalog) == set(names)
        await asyncio.gather(*(catalog.unload(name, dependents=True) for name in names))
        assert ready(catalog) == set()

    run(repository, scenario)


def test_a_start_tries_every_model_once(repository: Path) -> None:
    (repository / "first" / "1" / "model.py").write_text(
        "from pathlib import Path\n"
        "with (Path(__file__).parent / 'tries').open('a') as file:\n    file.write('x')\n"
        "raise RuntimeError('no such weights')\n"
    )

    async def scenario(catalog: Catalog) -> None:
        failed = await catalog.load_all({name: LoadParameters() for name in (*ENSEMBLES, *MODELS)})
        assert failed.keys() == {"first", "both", "outer", "waits", "late"}
        assert ready(catalog) == {"second", "alone", "numbered", "fixed"}
        assert (repository / "first" / "1" / "tries").read_text() == "x"

    run(repository, scenario)


def test_polling_brings_an_ensemble_back_when_its_step_is_mended(repository: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        for unused in ("waits", "fixed"):
            for path in sorted((repository / unused).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            (repository / unused).rmdir()
        await poll(catalog)
        assert ready(catalog) == {"outer", "both", "alone", "first", "second", "numbered"}
        config = repository / "first" / "config.pbtxt"
        good = config.read_text()
        config.write_text(good.replace("FP32", "FP64"))
        await poll(catalog)
        assert ready(catalog) == {"alone", "first", "second", "numbered"}
        config.write_text(good + "\n")
        await poll(catalog)
        assert ready(catalog) == {"outer", "both", "alone", "first", "second", "numbered"}

    run(repository, scenario)


def test_order_of_loads() -> None:
    steps = {"outer": ("inner", "a"), "inner": ("a", "b"), "lone": ("outer",)}
    order, circular = load_order(["lone", "a"], lambda name: steps.get(name, ()))
    assert list(order) == ["a", "b", "inner", "outer", "lone"]
    assert order["outer"] == ("inner", "a")
    assert circular == {}


def test_circles_are_found_and_named() -> None:
    steps = {"a": ("b",), "b": ("c",), "c": ("a",), "above": ("a", "x"), "self": ("self",)}
    order, circular = load_order(["above", "self"], lambda name: steps.get(name, ()))
    assert set(order) == {"above", "a", "b", "c", "x", "self"}
    assert {name: str(error) for name, error in circular.items()} == {
        "a": "circular dependency between ensembles: a -> ... -> c -> a",
        "b": "circular dependency between ensembles: b -> ... -> a -> b",
        "c": "circular dependency between ensembles: c -> ... -> b -> c",
        "self": "circular dependency between ensembles: self -> ... -> self -> self",
    }


def test_long_chains_of_ensembles_do_not_exhaust_the_stack() -> None:
    order, circular = load_order(["0"], lambda name: (str(int(name) + 1),) if int(name) < 5000 else ())
    assert len(order) == 5001
    assert circular == {}
