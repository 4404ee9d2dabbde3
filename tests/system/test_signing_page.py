"""The commands of docs/signing.md, one after the other, as written."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented import EXAMPLES, signing_commands
from server_process import start_server


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "examples" / "models"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](models)
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = [shlex.split(line) for line in signing_commands()]
    assert {" ".join(words[:2]) for words in commands} >= {"isochrone sign", "isochrone verify", "isochrone serve"}
    for words in commands:
        if words[:2] == ["isochrone", "serve"]:
            with start_server(Path(words[2]), *words[3:], log_path=tmp_path / "documented.log") as server:
                assert "signature verified" in server.log_text()
            continue
        program = [sys.executable, "-m"] if words[0] == "isochrone" else []
        ended = subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (models / "detector" / "1.sig").is_file()
