"""``isochrone logs``: its files, numbers of lines, and the error without logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.last_fleet import LastFleet, remember
from isochrone.cli.main import app


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a fleet that was the last one started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "state"
    (directory / "logs").mkdir(parents=True)
    for name in ("cpu-1", "gateway"):
        (directory / "logs" / f"{name}.log").write_text("".join(f"{name} line {number}\n" for number in range(30)))
    remember(LastFleet("plant", "", str(directory)))
    return directory


def test_all_processes_of_the_last_fleet_each_line_with_its_name() -> None:
    result = CliRunner().invoke(app, ["logs", "--lines", "2"])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "cpu-1   | cpu-1 line 28",
        "cpu-1   | cpu-1 line 29",
        "gateway | gateway line 28",
        "gateway | gateway line 29",
    ]


def test_one_process_as_it_wrote_it_and_as_json() -> None:
    assert CliRunner().invoke(app, ["logs", "cpu-1", "-n", "1"]).output == "cpu-1 line 29\n"
    assert len(CliRunner().invoke(app, ["logs", "cpu-1"]).output.splitlines()) == 20
    printed = json.loads(CliRunner().invoke(app, ["logs", "gateway", "-n", "1", "--json"]).output)
    assert printed == {"process": "gateway", "line": "gateway line 29"}


@pytest.mark.parametrize("inside", ["", "state"])
def test_the_state_directory_may_be_named_as_for_up(inside: str, tmp_path: Path) -> None:
    logs = tmp_path / "other" / inside / "logs"
    logs.mkdir(parents=True)
    (logs / "c1.log").write_text("hello\n")
    assert CliRunner().invoke(app, ["logs", "--state", str(tmp_path / "other")]).output == "c1 | hello\n"


def test_errors_name_what_to_change(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["logs", "cpu-11"])
    assert said.exit_code == 1
    assert "expected a known process (did you mean 'cpu-1'?)" in said.output
    assert "one of the known processes cpu-1, gateway" in CliRunner().invoke(app, ["logs", "zebra"]).output
    said = CliRunner().invoke(app, ["logs", "--state", str(tmp_path / "nowhere")])
    assert said.exit_code == 1
    assert said.output.count("\n") == 1
    assert "name the directory of its state with --state" in said.output


def test_following_prints_new_lines_and_new_processes_until_it_is_interrupted(state: Path) -> None:
    words = [sys.executable, "-m", "isochrone", "logs", "--follow", "-n", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "cpu-1   | cpu-1 line 29\n"
        assert process.stdout.readline() == "gateway | gateway line 29\n"
        with (state / "logs" / "cpu-1.log").open("a") as file:
            file.write("more\n")
        assert process.stdout.readline() == "cpu-1   | more\n"
        (state / "logs" / "controller-1.log").write_text("hello\n")
        assert process.stdout.readline() == "controller-1 | hello\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
