"""Models of one name in several repositories, served side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from queued_requests import RecordedRequest, rows_of
from runner_bench import until

from isochrone.clock import NEVER, now_ns
from isochrone.errors import InvalidArgument, IsochroneError, NotFound
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog.catalog import Catalog
from sample_models import write_config, write_python

TENSORS = """
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
STEP = """
    ensemble_scheduling {
      step {
        model_name: "step" model_version: -1
        input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
      }
    }
"""
AMBIGUOUS = "There are 2 identifiers of model 'step' in global map, model namespace must be provided"


@pytest.fixture
def repositories(tmp_path: Path) -> list[Path]:
    """Two of them: each has a model ``step`` (times 2, times 10), an ensemble over it, and a model of its own."""
    for namespace, factor in (("a", 2), ("b", 10)):
        root = tmp_path / namespace
        for name in ("step", f"own_{namespace}"):
            write_config(root / name, 'backend: "python"' + TENSORS)
            source = f"class Model:\n    def infer(self, inputs):\n        return {{'y': inputs['x'] * {factor}}}\n"
            write_python(root / name, source)
        write_config(root / f"graph_{namespace}", 'platform: "ensemble"' + TENSORS + STEP)
        (root / f"graph_{namespace}" / "1").mkdir()
    return [tmp_path / "a", tmp_path / "b"]


async def ask(catalog: Catalog, model: str) -> Any:
    plan = Plan(model, "", (("x", "FP32", (1,)),), None)
    request = RecordedRequest(plan, {"x": rows_of(3).reshape(1)}, now_ns(), NEVER)
    catalog.find(model, "").submit(request)
    await until(lambda: request.answers)
    if isinstance(request.answers[0], IsochroneError):
        raise request.answers[0]
    return request.answers[0]["y"].item()


def run(repository: Repository, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
    async def play() -> None:
        catalog = Catalog(repository, None, 30)
        try:
            await scenario(catalog)
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))


def test_each_ensemble_runs_the_step_of_its_own_repository(repositories: list[Path]) -> None:
    async def scenario(catalog: Catalog) -> None:
        entries = await catalog.scan()
        assert sorted(entries) == ["a::step", "b::step", "graph_a", "graph_b", "own_a", "own_b"]
        for name in ("a::step", "b::step", "own_a", "graph_a", "graph_b"):
            await catalog.load(name)
        answers = [await ask(catalog, name) for name in ("graph_a", "graph_b", "own_a", "a::step", "b::step")]
        assert answers == [6, 30, 6, 6, 30]
        with pytest.raises(InvalidArgument, match=AMBIGUOUS):
            catalog.find("step", "")
        with pytest.raises(NotFound):
            catalog.find("other", "")

    run(Repository(repositories, namespacing=True), scenario)


def test_loading_an_ensemble_loads_the_steps_it_means(repositories: list[Path]) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.scan()
        await catalog.load("graph_b")
        assert await ask(catalog, "graph_b") == 30
        with pytest.raises(InvalidArgument, match=AMBIGUOUS):
            await catalog.load("step")

    run(Repository(repositories, namespacing=True), scenario)


def test_without_namespaces_a_name_is_one_models(repositories: list[Path]) -> None:
    plain = Repository(repositories)
    assert plain.scan()["step"].problem is not None
    with pytest.raises(IsochroneError, match="one directory of this name"):
        plain.read("step")


def test_repositories_whose_directories_share_a_name_are_told_apart(tmp_path: Path) -> None:
    roots = [tmp_path / place / "models" for place in ("one", "two")]
    for root in roots:
        write_config(root / "m", 'backend: "python"' + TENSORS)
        write_python(root / "m", "class Model:\n    def infer(self, inputs):\n        return inputs\n")
    repository = Repository(roots, namespacing=True)
    assert sorted(repository.scan()) == ["models-2::m", "models::m"]
    assert repository.read("models-2::m").directory == roots[1] / "m"
    assert repository.read("models-2::m").config.name == "models-2::m"
    with pytest.raises(NotFound):
        repository.read("models-2::other")
