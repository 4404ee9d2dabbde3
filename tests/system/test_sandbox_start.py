"""Workers with ``--sandbox`` at their start, and a fleet that has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isochrone.errors import FlagError
from isochrone.secure.sandbox import trial
from isochrone.secure.sandbox.support import Support, present_support
from isochrone.secure.sandbox.trial import try_out
from sample_models import write_models
from server_process import start_server

pytestmark = pytest.mark.skipif(bool(present_support().missing()), reason="the kernel cannot confine models")


def test_the_start_says_what_models_do_without(tmp_path: Path) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32", "add_sub")
    with start_server(repository, "--sandbox") as server:
        (line,) = (event for event in server.log_events() if event["event"] == "python models run in a sandbox")
        found = try_out(present_support())
        assert line["without"] == found.lacks()
        assert found.own_user or os.geteuid() != 0


@pytest.mark.parametrize("support", [Support(0, False), Support(0, True), Support(1, True), Support(4, False)])
def test_best_effort_confines_by_what_there_is(support: Support) -> None:
    try_out(support)


def test_a_machine_on_which_nothing_can_be_confined_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MEMORY", 1)
    with pytest.raises(FlagError, match="--sandbox: expected a machine on which"):
        trial.try_out(present_support())


def test_a_model_with_a_link_to_elsewhere_does_not_load(tmp_path: Path) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32")
    (repository / "identity_fp32" / "1" / "data").symlink_to("/etc")
    command = [sys.executable, "-m", "isochrone", "serve", str(repository), "--sandbox", "--host", "127.0.0.1"]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "expected one that stays inside of the repository" in ended.stderr + ended.stdout
