"""A model whose load hangs: what is asked of the same model later does not wait for it, and its result is discarded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from catalog_run import run
from runner_bench import until
from structlog.testing import capture_logs

from isochrone.errors import Unavailable
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_turns import LoadTurns
from sample_models import write_config, write_python

MODEL = """
    backend: "python"
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
#: A version hangs in its load while there is no file named "go" beside the versions, if a file says that it hangs.
SOURCE = """
    import pathlib, time

    class Model:
        def load(self, context):
            version, model = context.directory.name, pathlib.Path(context.directory).parent
            self.freed = model / ("freed-" + version)
            if (model / ("hangs-" + version)).exists():
                (model / ("entered-" + version)).touch()
                while not (model / "go").exists():
                    time.sleep(0.001)

        def infer(self, inputs):
            return {"y": inputs["x"]}

        def close(self):
            self.freed.touch()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    write_config(directory, MODEL)
    for version in (1, 2, 3):
        write_python(directory, SOURCE, version)
    (directory / "hangs-2").touch()
    return directory


def served(catalog: Catalog) -> list[int]:
    return [version.number for version in catalog.versions("m")]


def states(catalog: Catalog) -> dict[str, tuple[str, str]]:
    return {version: (state, reason) for _, version, state, reason in catalog.index()}


async def hang(catalog: Catalog, model: Path) -> asyncio.Task[None]:
    """Version 1 is served, and a load of version 2 beside it hangs."""
    await catalog.load("m", {"versions": "1"})
    hanging = asyncio.ensure_future(catalog.load("m", {"versions": "1,2"}))
    await until((model / "entered-2").exists)
    return hanging


def test_a_later_load_of_other_versions_does_not_wait_and_the_late_result_is_freed(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        hanging = await hang(catalog, model)
        # The same again waits behind it, and is as useless as it is.
        again = asyncio.ensure_future(catalog.load("m", {"versions": "1,2"}))
        await asyncio.sleep(0)
        with capture_logs() as logs:
            await catalog.load("m", {"versions": "1,3"})
        assert served(catalog) == [1, 3]
        for each in (hanging, again):
            with pytest.raises(Unavailable, match="abandoned: a later call requests other versions"):
                await each
        assert states(catalog)["2"] == ("UNAVAILABLE", "unloaded: the load was abandoned")
        (warning,) = [line for line in logs if line["log_level"] == "warning"]
        assert (warning["model"], warning["versions"]) == ("m", [1, 2])
        (model / "go").touch()
        await until((model / "freed-2").exists)
        assert served(catalog) == [1, 3]

    run(model, scenario)


def test_the_later_call_stands_whichever_gets_its_turn_first() -> None:
    """Calls look at the repository on a thread before they get their turn."""

    async def scenario() -> None:
        turns = LoadTurns()
        earlier, later = turns.arrive(), turns.arrive()
        second = turns.enter("m", (1, 3), later)
        first = turns.enter("m", (1, 2), earlier)
        second.check()
        with pytest.raises(Unavailable, match="abandoned"):
            first.check()
        turns.leave(first)
        turns.leave(second)

    asyncio.run(scenario())


def test_the_version_that_was_given_up_can_be_loaded_again(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        hanging = await hang(catalog, model)
        await catalog.load("m", {"versions": "1"})
        with pytest.raises(Unavailable, match="abandoned"):
            await hanging
        assert served(catalog) == [1]
        (model / "hangs-2").unlink()
        await catalog.load("m", {"versions": "1,2"})
        assert served(catalog) == [1, 2]
        second = catalog.find("m", "2")
        (model / "go").touch()
        await until((model / "freed-2").exists)
        assert catalog.find("m", "2") is second

    run(model, scenario)


def test_an_unload_does_not_wait_for_it(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        hanging = await hang(catalog, model)
        await catalog.unload("m")
        assert served(catalog) == []
        with pytest.raises(Unavailable, match="abandoned"):
            await hanging

    run(model, scenario)


def test_a_load_that_wants_it_too_waits_for_it(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        hanging = await hang(catalog, model)
        more = asyncio.ensure_future(catalog.load("m", {"versions": "1,2,3"}))
        await asyncio.sleep(0)
        (model / "go").touch()
        await hanging
        await more
        assert served(catalog) == [1, 2, 3]

    run(model, scenario)


def test_a_load_by_the_files_alone_is_never_given_up(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        write_python(model, SOURCE, 4)
        (model / "hangs-4").touch()
        plain = asyncio.ensure_future(catalog.load("m"))
        await until((model / "entered-4").exists)
        later = asyncio.ensure_future(catalog.load("m", {"versions": "1"}))
        await asyncio.sleep(0)
        (model / "go").touch()
        await plain
        await later
        assert served(catalog) == [1]

    run(model, scenario)
