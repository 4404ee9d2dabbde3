"""Versions come and go beside each other: what stays is not touched, what fails changes nothing, what goes drains.

Real models in a real repository, on a real loop; no server around them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from catalog_run import run
from queued_requests import RecordedRequest, rows_of
from runner_bench import until

from isochrone.clock import now_ns
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed, NotFound, Unavailable
from isochrone.models.repository import digest as digest_module
from isochrone.models.repository.repository import Repository
from isochrone.protocol.control_json import model_config_json
from isochrone.protocol.messages import Plan
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.catalog.states import READY, UNAVAILABLE
from sample_models import write_config, write_python

MODEL = """
    backend: "python"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
#: Answers its version; a negative number is answered when a file named "go" lies beside the versions. Slow enough to
#: have a thread of its own.
SOURCE = """
    import pathlib, time

    class Model:
        def load(self, context):
            self.version = float(context.directory.name)
            self.model = pathlib.Path(context.directory).parent
            with (self.model / "loads").open("a") as file:
                file.write(context.directory.name + "\\n")
            if (self.model / ("broken-" + context.directory.name)).exists():
                raise RuntimeError("no such weights")

        def infer(self, inputs):
            time.sleep(0.001)
            if inputs["x"].min() < 0:
                (self.model / "entered").touch()
                while not (self.model / "go").exists():
                    time.sleep(0.001)
            return {"y": inputs["x"] * 0 + self.version}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of three versions, and not a word on which to serve."""
    directory = tmp_path / "m"
    write_config(directory, MODEL)
    for version in (1, 2, 3):
        write_python(directory, SOURCE, version)
    return directory


def send(catalog: Catalog, version: str, value: float = 1.0) -> RecordedRequest:
    request = RecordedRequest(Plan("m", version, (("x", "FP32", (1, 1)),), None), {"x": rows_of(value)}, now_ns())
    catalog.find("m", version).submit(request)
    return request


async def ask(catalog: Catalog, version: str) -> Any:
    request = send(catalog, version)
    await until(lambda: request.answers)
    (answer,) = request.answers
    if isinstance(answer, IsochroneError):
        raise answer
    return answer["y"].item()


def loads(model: Path) -> list[str]:
    return (model / "loads").read_text().split()


def states(catalog: Catalog) -> dict[str, tuple[str, str]]:
    return {version: (state, reason) for _, version, state, reason in catalog.index()}


@pytest.mark.parametrize("how", ["versions", "config"])
def test_a_version_is_added_beside_the_one_that_serves(model: Path, how: str) -> None:
    async def scenario(catalog: Catalog) -> None:
        def parameters(*versions: int) -> dict[str, str]:
            if how == "versions":
                return {"versions": ",".join(map(str, versions))}
            config = model_config_json(Repository([model.parent]).read("m").config)
            return {"config": json.dumps({**config, "version_policy": {"specific": {"versions": versions}}})}

        await catalog.load("m", parameters(1))
        first = catalog.find("m", "1")
        waiting = send(catalog, "1", -1)
        await until((model / "entered").exists)
        await catalog.load("m", parameters(1, 2))
        assert catalog.find("m", "1") is first
        assert first.in_flight == 1
        assert not waiting.answers
        assert catalog.find("m", "").model_version == "2"
        assert await ask(catalog, "2") == 2
        assert states(catalog) == {"1": (READY, ""), "2": (READY, "")}
        # The same again is nothing to do; 1 goes when its last request is over.
        second = catalog.find("m", "2")
        await catalog.load("m", parameters(1, 2))
        assert [catalog.find("m", version) for version in ("1", "2")] == [first, second]
        assert loads(model) == ["1", "2"]
        await catalog.load("m", parameters(2))
        assert catalog.find("m", "2") is second
        with pytest.raises(Unavailable, match="version 1 is not at ready state"):
            catalog.find("m", "1")
        assert states(catalog)["1"] == ("UNLOADING", "")
        (model / "go").touch()
        await until(lambda: waiting.answers)
        assert waiting.answers[0]["y"].item() == 1
        await until(lambda: states(catalog)["1"] == (UNAVAILABLE, "unloaded"))
        assert loads(model) == ["1", "2"]

    run(model, scenario)


def test_a_version_that_fails_leaves_the_others_as_they_were(model: Path) -> None:
    (model / "broken-2").touch()

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m", {"versions": "1"})
        first = catalog.find("m", "1")
        with pytest.raises(ModelFailed, match="no such weights"):
            await catalog.load("m", {"versions": "1,2"})
        assert catalog.find("m", "1") is first
        assert catalog.find("m", "") is first
        assert await ask(catalog, "") == 1
        index = states(catalog)
        assert index["1"][0] == READY
        assert index["2"][0] == UNAVAILABLE
        assert "no such weights" in index["1"][1]
        assert "no such weights" in index["2"][1]
        # Given up, nothing reminds of it.
        await catalog.load("m", {"versions": "1"})
        assert states(catalog) == {"1": (READY, "")}
        assert catalog.find("m", "1") is first
        (model / "broken-2").unlink()
        await catalog.load("m", {"versions": "1,2"})
        assert await ask(catalog, "2") == 2
        assert catalog.find("m", "1") is first

    run(model, scenario)


def test_a_version_that_is_not_there_is_named(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m", {"versions": "1"})
        first = catalog.find("m", "1")
        with pytest.raises(ConfigError, match=r"'versions'.*expected a version that is present.*given 9"):
            await catalog.load("m", {"versions": "1,9"})
        assert catalog.find("m", "1") is first
        with pytest.raises(NotFound):
            catalog.find("m", "9")

    run(model, scenario)


def test_a_version_can_come_back_while_it_leaves(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m", {"versions": "1,2"})
        first = catalog.find("m", "1")
        waiting = send(catalog, "1", -1)
        await until((model / "entered").exists)
        await catalog.load("m", {"versions": "2"})
        await catalog.load("m", {"versions": "1,2"})
        assert catalog.find("m", "1") is not first
        assert await ask(catalog, "1") == 1
        (model / "go").touch()
        await until(lambda: waiting.answers)
        await until(lambda: first not in catalog._drains.versions)
        assert states(catalog) == {"1": (READY, ""), "2": (READY, "")}

    run(model, scenario)


def test_a_changed_version_is_exchanged_and_its_neighbour_is_not(model: Path) -> None:
    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m", {"versions": "1,2"})
        first, second = (catalog.find("m", version) for version in ("1", "2"))
        write_python(model, SOURCE.replace("* 0 + self.version", "* 0 + 20"), 2)
        await catalog.load("m", {"versions": "1,2"})
        assert catalog.find("m", "1") is first
        assert catalog.find("m", "2").digest != second.digest
        assert await ask(catalog, "2") == 20

    run(model, scenario)


def test_asking_for_what_is_there_reads_no_file_twice(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    original = digest_module._add_file

    def counted(total: Any, kind: bytes, relative: bytes, path: Path) -> None:
        read.append(path)
        original(total, kind, relative, path)

    monkeypatch.setattr(digest_module, "_add_file", counted)
    for version in (1, 2):
        # Long ago: what was written a moment ago is read again, to be sure.
        os.utime(model / str(version) / "model.py", ns=(1, 1))

    async def scenario(catalog: Catalog) -> None:
        for versions in ("1", "1,2", "1,2", "2", "2"):
            await catalog.load("m", {"versions": versions})

    run(model, scenario)
    assert [path.parent.name for path in read] == ["1", "2"]


@pytest.mark.parametrize("given", ["", "1,", "0", "-1", "one", "1;2", "1.0", 7, None, ["1"]])
def test_versions_that_make_no_sense_are_refused(given: Any) -> None:
    if given is None:
        assert LoadParameters.read({"versions": given}).versions is None
        return
    with pytest.raises(InvalidArgument, match=r"load parameter 'versions': expected versions as in '1,2', given"):
        LoadParameters.read({"versions": given})


def test_load_parameters_are_told_apart() -> None:
    asked = LoadParameters.read({"config": "{}", "file:1/model.py": b"x", "versions": " 2, 1 "})
    assert (asked.config, asked.files, asked.versions) == ("{}", {"file:1/model.py": b"x"}, (2, 1))
    assert LoadParameters.read({}) == LoadParameters()
    for wrong in ({"config": 1}, {"file:1/model.py": "x"}, {"version": "1"}):
        with pytest.raises(InvalidArgument, match="load parameter"):
            LoadParameters.read(wrong)
