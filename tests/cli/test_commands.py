"""Every command exists, and none imports the modules of another."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from isochrone.cli.commands import COMMANDS
from isochrone.cli.main import app


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_found_and_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage: " in result.output


def test_the_help_lists_them_all_in_order() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    listed = [line.split()[0] for line in output.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert listed == list(COMMANDS)


def test_a_command_that_is_not_there_suggests_one_that_is() -> None:
    result = CliRunner().invoke(app, ["serv"])
    assert result.exit_code == 2
    assert "Did you mean 'serve'" in result.output


def test_up_refuses_an_engine_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["up", "--engine", "abacus"])
    assert result.exit_code == 1
    assert result.output == "isochrone up: --engine: name: expected one of local, given 'abacus'\n"


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (
            ["--help"],
            "isochrone.cli.processes.serve isochrone.cli.simulate isochrone.cli.fleet.up isochrone.cli.requests.infer"
            " numpy",
        ),
        (["serve", "--help"], "isochrone.simulate isochrone.control isochrone.gateway httpx starlette uvicorn"),
        (["gateway", "--help"], "isochrone.simulate isochrone.worker httpx starlette uvicorn"),
        (["up", "--help"], "isochrone.simulate isochrone.worker httpx starlette uvicorn"),
    ],
)
def test_a_process_imports_only_what_it_needs(words: list[str], never: str) -> None:
    code = (
        "import sys\nfrom isochrone.cli.main import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit:\n    pass\n"
        f"print('imported:', *[name for name in {never.split()!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "imported:"
