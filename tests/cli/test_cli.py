"""The command line without a server: help, version, and errors of ``serve``."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.cli.processes import serve
from isochrone.cli.requests import infer
from isochrone.cli.triton.command_line import own_switch


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


# Help.


@pytest.mark.parametrize("command", ["serve", "infer"])
def test_help_shows_its_examples_line_by_line_and_option_names_whole(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, "--help"])
    assert result.exit_code == 0
    epilog = {"serve": serve.EPILOG, "infer": infer.EPILOG}[command]
    examples = [line for line in epilog.splitlines() if line.startswith("  isochrone ")]
    assert len(examples) >= 4
    printed = [line.strip() for line in result.output.splitlines()]
    for line in examples:
        assert line.strip() in printed
    assert "…" not in result.output
    assert "--model-repository" in result.output or command == "infer"


def test_the_bare_command_and_version() -> None:
    assert "serve" in run().output
    assert run("--version").output.startswith("isochrone 0.")


# serve.


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "no model repository"),
        (["/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        ([".", "--model-control-mode", "sometimes"], "'sometimes'"),
        ([".", "--load-model", "x"], "--model-control-mode explicit"),
        ([".", "--tls-cert", "c.pem"], "--tls-key"),
        ([".", "--cache-config", "redis,host=x"], "local,size=BYTES"),
    ],
)
def test_serve_refuses_in_one_sentence(arguments: list[str], named: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == 1
    assert named in result.output
    assert result.output.count("\n") == 1


def test_switches_as_triton_writes_them() -> None:
    switches = {"--no-allow-grpc"}
    assert own_switch("--allow-grpc=false", switches) == "--no-allow-grpc"
    assert own_switch("--allow-grpc=True", switches) == "--allow-grpc"
    assert own_switch("--allow-grpc=0", switches) == "--no-allow-grpc"
    assert own_switch("--allow-grpc=maybe", switches) == "--allow-grpc=maybe"
    assert own_switch("--http-port=8000", switches) == "--http-port=8000"
    result = run("serve", "--allow-metrics=false", "/nowhere/at/all")
    assert "/nowhere/at/all is not a directory" in result.output
    assert run("serve", "--allow-metrics=maybe", ".").exit_code == 2
