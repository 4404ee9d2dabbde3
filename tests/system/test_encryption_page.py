"""The commands of docs/encryption.md, one after the other, as written."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from documented import EXAMPLES, encryption_commands
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.models.repository.encrypted.names import is_encrypted
from server_process import start_server


@pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")
def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "examples" / "models"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](models)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}", prepend=":")
    served = 0
    for line in encryption_commands():
        if line.startswith("isochrone serve"):
            words = line.split()
            with start_server(Path(words[2]), *words[3:], log_path=tmp_path / "documented.log") as server:
                assert "version decrypted" in server.log_text()
            served += 1
        else:
            # With a shell: the first writes into a file.
            ended = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stdout + ended.stderr
    assert served
    assert is_encrypted(models / "detector" / "2")
