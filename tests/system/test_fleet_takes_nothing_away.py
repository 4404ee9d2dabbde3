"""Files that would take away what is served: refused, or carried out so that no request is lost meanwhile."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_fleets import LIMIT, applied, ask, command, pids, rewritten, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import write_corrupt_version, write_repository
from bench.control.running_fleet import CONTROLLER, GATEWAY
from fleet_load import FleetLoad

pytestmark = pytest.mark.long

ONE_WORKER = Shape(workers=1, gateways=1, controllers=1)


def _workers(fleet: SupervisedFleet) -> set[str]:
    return {worker["name"] for worker in fleet.api.status()["workers"]}


def _unnamed(document: dict[str, Any]) -> None:
    """Whatever the repository holds is served."""
    del document["models"]


def test_a_wrong_repository_takes_nothing_away(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet, FleetLoad([fleet.of(GATEWAY)[0].address], rate=20.0) as load:
        rewritten(fleet, _unnamed)
        applied(fleet)
        until(lambda: set(fleet.api.versions().values()) == {"3"}, "the latest versions")
        until(lambda: not fleet.api.status()["rollouts"], "the rollouts to end")
        before = pids(fleet)
        versions = fleet.api.versions()
        generation = fleet.api.status()["generation"]

        def refused(repository: str, *words: str) -> None:
            rewritten(fleet, lambda document: document.update(repository=repository))
            for dry in ((), ("--dry-run",)):
                ended = command(fleet, "apply", str(fleet.file), "--yes", *dry)
                assert ended.status == 1
                assert all(word in ended.said for word in words), ended.said

        refused(str(tmp_path / "modles"), "repository: expected a directory at", "nothing there")
        (tmp_path / "hollow").mkdir()
        refused(str(tmp_path / "hollow"), "expected at least one model in", "given none")
        # One that holds a model that is served, in another form.
        (tmp_path / "other").mkdir()
        for name in ("stage_a", "stage_b", "chain", "solo"):
            (tmp_path / "other" / name).mkdir()
            (tmp_path / "other" / name / "config.pbtxt").write_text(
                (tmp_path / "models" / name / "config.pbtxt").read_text()
            )
            (tmp_path / "other" / name / "9").symlink_to(tmp_path / "models" / name / "1")
        refused(str(tmp_path / "other"), "solo version", "which pool cpu serves")
        load.wait_answers()
        assert (fleet.api.versions(), fleet.api.status()["generation"]) == (versions, generation)
        assert pids(fleet) == before
    assert load.failed == []


def _typed(fleet: SupervisedFleet, word: str) -> str:
    """What ``isochrone apply`` says at a terminal where a word is typed."""
    controller, terminal = pty.openpty()
    api = f"http://{fleet.of(CONTROLLER)[0].address}"
    words = [sys.executable, "-m", "isochrone", "apply", str(fleet.file), "--api", api]
    with os.fdopen(controller, "r+b", buffering=0) as typing:
        process = subprocess.Popen(words, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.close(terminal)
        typing.write(word.encode() + b"\n")
        said = process.communicate(timeout=LIMIT)[0].decode()
    assert process.returncode == 1
    return said


def test_what_a_plan_retires_needs_agreement(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet:
        gateway = fleet.of(GATEWAY)[0].address

        def without_solo(document: dict[str, Any]) -> None:
            del document["models"]["solo"]

        rewritten(fleet, without_solo)
        # There is no terminal here: nobody can be asked.
        ended = command(fleet, "apply", str(fleet.file))
        assert ended.status == 1
        assert "no longer served" in ended.said
        assert "--yes" in ended.said
        # At a terminal the word has to be typed.
        assert "nothing was applied" in _typed(fleet, "y")
        assert ask(gateway, "solo").status == 200
        body = {"text": fleet.file.read_text(), "directory": str(fleet.file.parent)}
        url = f"http://{fleet.of(CONTROLLER)[0].address}/v1/fleet"
        answer = httpx.put(url, json=body, trust_env=False)
        assert (answer.status_code, answer.json()["code"]) == (409, "not_agreed")
        assert "retire model solo: no longer served" in answer.json()["error"]
        assert ask(gateway, "solo").status == 200
        answer = httpx.put(url, json={**body, "retire": ["model solo"]}, trust_env=False)
        assert answer.status_code == 200, answer.text
        until(lambda: ask(gateway, "solo").status == 404, "the model to be gone")


@pytest.mark.parametrize("broken", [False, True], ids=["good", "aborted"])
def test_a_renamed_pool_serves_before_the_old_one_goes(tmp_path: Path, broken: bool) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet, FleetLoad([fleet.of(GATEWAY)[0].address], rate=20.0) as load:

        def renamed(document: dict[str, Any]) -> None:
            document["pools"] = {"metal": {"workers": 1}}
            if broken:
                document["models"]["solo"]["version"] = 9

        write_corrupt_version(tmp_path / "models", "solo", 9)
        rewritten(fleet, renamed)
        said = command(fleet, "apply", str(fleet.file), "--dry-run").said
        assert "retire" in said
        # It waits for the rollouts, and says how they ended.
        ended = command(fleet, "apply", str(fleet.file), "--yes")
        assert ended.status == int(broken), ended.said
        if broken:
            assert any(each["state"] == "aborted" for each in fleet.api.rollouts())
            assert not fleet.api.status()["rollouts"]
            # What moved is served by the new pool, and what did not by the old one.
            assert _workers(fleet) == {"cpu-1", "metal-1"}
        else:
            until(lambda: _workers(fleet) == {"metal-1"}, "the new pool alone")
        load.wait_answers(20)
    assert load.failed == []


def test_a_pool_that_is_renamed_and_at_once_renamed_back_loses_nothing(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet, FleetLoad([fleet.of(GATEWAY)[0].address], rate=20.0) as load:
        first = fleet.file.read_text()
        rewritten(fleet, lambda document: document.update(pools={"metal": {"workers": 1}}))
        for text in (fleet.file.read_text(), first, fleet.file.read_text(), first):
            fleet.api.apply(text, str(fleet.file.parent), retire=True)
            # Wherever it is by then: not begun, prepared, committed.
            load.wait_answers(5)
        until(lambda: _workers(fleet) == {"cpu-1"}, "the first pool alone")
        until(lambda: not fleet.api.status()["rollouts"], "the rollouts to end")
        assert {tuple(model["pools"]) for model in fleet.api.status()["models"]} == {("cpu",)}
        load.wait_answers(20)
    assert load.failed == []


def test_a_second_apply_during_a_rollout_retires_nothing_before_it_is_done(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet:
        gateway = fleet.of(GATEWAY)[0].address

        def changed(document: dict[str, Any]) -> None:
            del document["models"]["solo"]
            # No traffic: the canary stays open until it is promoted.
            canary = {"steps": ["10%"], "min_samples": 100_000, "max_seconds": 3600}
            document["models"]["chain"] = {"version": 2, "rollout": {"canary": canary}}

        rewritten(fleet, changed)
        for text in (fleet.file.read_text(), fleet.file.read_text(), fleet.file.read_text() + "# changed"):
            fleet.api.apply(text, str(fleet.file.parent), retire=True)
            until(lambda: fleet.api.status()["followed"] == fleet.api.status()["generation"], "the file to be followed")
            assert ask(gateway, "solo").status == 200
        (rollout,) = fleet.api.status()["rollouts"]
        until(lambda: fleet.api.status()["rollouts"][0]["state"] == "canary", "the canary")
        fleet.api.promote(rollout["identity"])
        until(lambda: ask(gateway, "solo").status == 404, "the model to be retired")
        assert fleet.api.versions() == {"chain": "2", "stage_a": "1", "stage_b": "1"}


def test_the_only_worker_is_replaced_without_a_lost_request(tmp_path: Path) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet, FleetLoad([fleet.of(GATEWAY)[0].address], rate=20.0) as load:
        before = pids(fleet)["cpu-1"]
        rewritten(fleet, lambda document: document["pools"]["cpu"].update(memory="1GiB"))
        applied(fleet)
        until(lambda: pids(fleet)["cpu-1"] not in (None, before), "another process")
        until(lambda: _workers(fleet) == {"cpu-1"}, "the second worker to be gone")
        load.wait_answers(20)
    assert load.failed == []


def test_another_repository_comes_before_what_it_holds(tmp_path: Path) -> None:
    """Workers restart with it one by one, and the rollout of its model waits for them."""
    with small_fleet(tmp_path) as fleet, FleetLoad([fleet.of(GATEWAY)[0].address], rate=20.0) as load:
        write_repository(tmp_path / "more", 1)
        (tmp_path / "second").mkdir()
        (tmp_path / "more" / "solo").rename(tmp_path / "second" / "fresh")
        config = tmp_path / "second" / "fresh" / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "solo"', 'name: "fresh"'))
        before = pids(fleet)

        def more(document: dict[str, Any]) -> None:
            document["repository"] = [document["repository"], str(tmp_path / "second")]
            document["models"]["fresh"] = {"version": 1}

        rewritten(fleet, more)
        applied(fleet)
        until(lambda: ask(fleet.of(GATEWAY)[0].address, "fresh").status == 200, "the new model")
        until(
            lambda: all(pids(fleet)[name] not in (None, before[name]) for name in ("cpu-1", "cpu-2")), "both restarts"
        )
        assert [each["state"] for each in fleet.api.rollouts()].count("aborted") == 0
        load.wait_answers(20)
    assert load.failed == []


_PLAIN = """name: "plain"
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "raise ValueError('the weights of floor 3 are missing')",
            ("the weights of floor 3 are missing", "auto_warmup"),
        ),
        ("return {'Y': inputs['X'].astype('float64')}", ("expected FP32", "FP64")),
        ("return {'Y': inputs['X'].repeat(2, axis=1)}", ("expected shape [1,1]", "given [1,2]")),
    ],
    ids=["raises", "datatype", "shape"],
)
def test_a_version_that_fails_its_warm_up_is_aborted_with_its_own_words(
    tmp_path: Path, line: str, words: tuple[str, ...]
) -> None:
    with small_fleet(tmp_path, ONE_WORKER) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        place = tmp_path / "models" / "plain"
        for version, body in ((1, "return {'Y': inputs['X']}"), (2, line)):
            (place / str(version)).mkdir(parents=True)
            source = f"class Model:\n    def infer(self, inputs):\n        {body}\n"
            (place / str(version) / "model.py").write_text(source)
        (place / "config.pbtxt").write_text(_PLAIN)
        for version in (1, 2):
            rewritten(fleet, lambda document, at=version: document["models"].update(plain={"version": at}))
            ended = command(fleet, "apply", str(fleet.file), "--yes")
            assert ended.status == version - 1, ended.said
        record = _ended(fleet, "plain", "2")
        assert record is not None
        assert record["state"] == "aborted"
        assert all(word in record["reason"] for word in words), record["reason"]
        assert ask(gateway, "plain").version == "1"


def _ended(fleet: SupervisedFleet, model: str, version: str) -> dict[str, Any] | None:
    """The rollout of a version, once it is over."""
    for record in fleet.api.rollouts():
        change = record["changes"].get(model)
        if change is not None and change["version"] == version and record["state"] in ("done", "aborted"):
            return dict(record)
    return None
