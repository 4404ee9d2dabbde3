"""Every command's help: ``-h``, types in words, completion for shells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from isochrone.cli.main import app


def _every_command() -> Iterator[tuple[str, ...]]:
    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, (*words, name))

    yield from below(typer.main.get_command(app), ())


COMMANDS = list(_every_command())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_h_is_help_and_no_type_is_pythons(words: tuple[str, ...]) -> None:
    short = CliRunner().invoke(app, [*words, "-h"])
    assert short.exit_code == 0, short.output
    assert short.output == CliRunner().invoke(app, [*words, "--help"]).output
    assert "Commands:" in short.output or "Examples:\n    isochrone " in short.output
    assert "[[" not in short.output
    for wrong in ("list[", "<str>", "<int", "<float", "<path>", "<Path>"):
        assert wrong not in short.output


def test_options_of_several_values_say_what_one_is() -> None:
    output = CliRunner().invoke(app, ["gateway", "-h"]).output
    assert "--upstream HOST:PORT" in output
    assert "--upstream-file PATH" in output
    assert "--limit NAME=VALUE" in output


def test_h_is_not_taken_from_a_models_arguments() -> None:
    assert "MODEL=VERSION  The version" in CliRunner().invoke(app, ["rollout", "start", "-h"]).output


def _completed(words: str) -> list[str]:
    environment = {
        **os.environ,
        "_ISOCHRONE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - (0 if words.endswith(" ") else 1)),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "isochrone"], env=environment, capture_output=True, text=True, timeout=60
    )
    return ended.stdout.split()


def test_shells_complete_commands_and_options() -> None:
    assert _completed("isochrone ro") == ["rollout"]
    assert _completed("isochrone rollout st") == ["start", "status"]
    assert _completed("isochrone infer --time") == ["--timeout-ms"]


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_completion_installs_itself(shell: str, file: str, tmp_path: Any) -> None:
    """In a home of its own; typer asks the parent process which shell it is unless it is named."""
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [sys.executable, "-m", "isochrone", "--install-completion", shell]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "isochrone" in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert (tmp_path / file).exists()
