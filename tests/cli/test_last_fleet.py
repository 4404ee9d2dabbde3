"""The controller that a command uses: ``--api``, then ISOCHRONE_API, then the last fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.api_client import ApiClient
from isochrone.cli.last_fleet import LastFleet, last_fleet, last_fleet_file, remember
from isochrone.cli.main import app

FLEET = LastFleet("plant", "http://127.0.0.1:1", "/somewhere/state")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_remembered_is_found_again(state_home: Path) -> None:
    assert last_fleet() is None
    remember(FLEET)
    assert last_fleet() == FLEET
    assert last_fleet_file() == state_home / "isochrone" / "last-fleet.json"
    assert [path.name for path in last_fleet_file().parent.iterdir()] == ["last-fleet.json"]


def test_without_the_variable_it_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for given in ("", "relative/state"):
        monkeypatch.setenv("XDG_STATE_HOME", given)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert last_fleet_file() == tmp_path / ".local" / "state" / "isochrone" / "last-fleet.json"


@pytest.mark.parametrize("content", ["", "{}", "[]", "\x00", '{"name": "a"}'])
def test_a_file_that_makes_no_sense_is_as_good_as_none(content: str) -> None:
    remember(FLEET)
    last_fleet_file().write_text(content)
    assert last_fleet() is None
    with ApiClient("") as client:
        assert client.url == "http://127.0.0.1:8003"


def test_a_place_that_cannot_be_written_to_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    remember(FLEET)
    assert last_fleet() is None


def test_the_last_fleet_is_the_default_and_named_when_it_does_not_answer() -> None:
    remember(FLEET)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 1
    assert "no controller of fleet plant, the last one started here, answers at http://127.0.0.1:1 " in result.output


def test_the_variable_comes_before_the_last_fleet_and_the_option_before_both() -> None:
    remember(FLEET)
    said = CliRunner(env={"ISOCHRONE_API": "http://127.0.0.1:2"}).invoke(app, ["status"]).output
    assert "no controller answers at http://127.0.0.1:2 " in said
    words = ["status", "--api", "http://127.0.0.1:3"]
    said = CliRunner(env={"ISOCHRONE_API": "http://127.0.0.1:2"}).invoke(app, words).output
    assert "no controller answers at http://127.0.0.1:3 " in said


def test_a_fleet_whose_controller_picked_its_port_leaves_the_usual_one() -> None:
    remember(LastFleet("plant", "", "/somewhere/state"))
    with ApiClient("") as client:
        assert client.url == "http://127.0.0.1:8003"


def test_infer_talks_to_the_gateway_of_the_last_fleet_and_names_it() -> None:
    remember(LastFleet("plant", "http://127.0.0.1:1", "/somewhere/state", "http://127.0.0.1:2"))
    said = CliRunner().invoke(app, ["infer", "detector"]).output
    assert "no server answers at http://127.0.0.1:2 " in said
    assert "the gateway of fleet plant, the last one started here" in said
    said = CliRunner().invoke(app, ["infer", "detector", "--url", "http://127.0.0.1:3"]).output
    assert "no server answers at http://127.0.0.1:3 " in said
    assert "plant" not in said


def test_a_file_of_an_earlier_release_names_no_gateway() -> None:
    remember(FLEET)
    last_fleet_file().write_text('{"name": "plant", "api": "http://127.0.0.1:1", "state": "/somewhere/state"}')
    assert last_fleet() == FLEET


def test_the_help_says_so() -> None:
    output = " ".join(CliRunner().invoke(app, ["status", "--help"]).output.split())
    assert "env var: ISOCHRONE_API" in output
    assert "the fleet last started here with 'isochrone up', else http://127.0.0.1:8003" in output
    output = " ".join(CliRunner().invoke(app, ["infer", "--help"]).output.split())
    assert "the gateway of the fleet last started here with 'isochrone up', else http://localhost:8000" in output


def test_a_controller_that_is_away_may_be_back_soon() -> None:
    remember(FLEET)
    said = CliRunner().invoke(app, ["status"]).output
    assert "if 'isochrone up' is running, try again in a few seconds" in said


@pytest.mark.parametrize("words", [["apply"], ["up"], ["validate"]], ids=" ".join)
def test_a_fleet_file_that_is_not_there_is_one_plain_sentence(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "nofile.yaml"])
    assert result.exit_code == 1
    assert "nofile.yaml: no such file; name a fleet.yaml (isochrone init writes one)\n" in result.output
