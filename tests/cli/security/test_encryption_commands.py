"""``isochrone encrypt`` and ``isochrone decrypt``: what they write, and what a killed one leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from encrypted_models import KEY, OTHER_KEY, write_key
from isochrone.cli.files.checking import check
from isochrone.cli.main import app
from isochrone.models.repository.encrypted.names import HEADER, is_encrypted, key_name
from sample_models import write_config, write_models, write_python
from watching import wait_for


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", "add_sub")


def run(*words: str, status: int = 0) -> str:
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == status, ended.output
    assert KEY not in ended.output
    return ended.output


def test_a_version_is_encrypted_as_another_and_back(models: Path, tmp_path: Path) -> None:
    key, model = write_key(tmp_path), models / "add_sub"
    plain = (model / "1" / "model.onnx").read_bytes()
    said = json.loads(run("encrypt", str(models), "add_sub", "--as-version", "2", "--key", key, "--json"))
    assert said[0] | {"key": ""} == {"model": "add_sub", "version": 2, "files": 1, "key": ""}
    assert (model / "1" / "model.onnx").read_bytes() == plain
    assert sorted(each.name for each in (model / "2").iterdir()) == [HEADER, "model.onnx.encrypted"]
    run("decrypt", str(models), "add_sub", "--version", "2", "--as-version", "3", "--key", key)
    assert (model / "3" / "model.onnx").read_bytes() == plain


def test_all_versions_get_a_new_key(models: Path, tmp_path: Path) -> None:
    old, new, model = write_key(tmp_path), write_key(tmp_path, "new.key", OTHER_KEY), models / "add_sub"
    shutil.copytree(model / "1", model / "2")
    run("encrypt", str(models), "add_sub", "--version", "all", "--key", old)
    files = {each: each.read_bytes() for each in model.glob("*/*")}
    words = ("--version", "all", "--rewrap", "--old-key", old, "--key", new)
    assert "key wrapped again" in run("encrypt", str(models), "add_sub", *words)
    assert {each: each.read_bytes() for each in model.glob("*/*")} == files
    assert "needs the key" in run("decrypt", str(models), "add_sub", "--key", old, status=1)
    run("decrypt", str(models), "add_sub", "--version", "all", "--key", new)
    assert not list(model.glob("*.wrapped-key"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--rewrap",), "go together"),
        (("--old-key", "env:X"), "go together"),
        (("--rewrap", "--old-key", "env:X", "--as-version", "2"), "does not go with --rewrap"),
        (("--as-version", "x"), "expected a positive integer"),
        (("--as-version", "2", "--version", "all"), "with one --version"),
        (("--as-version", "1"), "in one step"),
    ],
)
def test_flags_that_do_not_fit_are_errors(models: Path, tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    if expected == "in one step":
        # The same number is no other version: it replaces the version.
        run("encrypt", str(models), "add_sub", "--key", write_key(tmp_path), *words)
        assert is_encrypted(models / "add_sub" / "1")
        return
    ended = CliRunner().invoke(app, ["encrypt", str(models), "add_sub", "--key", write_key(tmp_path), *words])
    assert ended.exit_code != 0
    assert expected in " ".join(ended.output.replace("│", " ").split())
    assert not is_encrypted(models / "add_sub" / "1")


def test_validate_leaves_the_model_file_of_an_encrypted_version_alone(models: Path, tmp_path: Path) -> None:
    write_config(models / "code", 'backend: "python"')
    write_python(models / "code", "")
    for model in ("add_sub", "code"):
        run("encrypt", str(models), model, "--key", write_key(tmp_path))
    found = check(str(models))
    assert found.problems == ()
    assert found.models == {"add_sub": "1", "code": "1"}


_SLOW = """
import sys
from pathlib import Path
from isochrone.models.repository.encrypted import writing
at, real = sys.argv.pop(1), {name: getattr(writing, name) for name in ("encrypt", "exchange", "write_whole")}
def stop(name, before):
    def run(*arguments, **options):
        if before:
            print("here", flush=True)
            sys.stdin.read()
        result = real[name](*arguments, **options)
        print("here", flush=True)
        sys.stdin.read()
        return result
    return run
name, _, when = at.partition(" ")
setattr(writing, name, stop(name, when == "before"))
from isochrone.cli.main import app
app()
"""


@pytest.mark.parametrize(
    "at", [f"{name} {when}" for name in ("encrypt", "write_whole", "exchange") for when in ("before", "after")]
)
def test_a_killed_command_leaves_the_old_or_the_new_version(models: Path, tmp_path: Path, at: str) -> None:
    key, version = write_key(tmp_path), models / "add_sub" / "1"
    plain = (version / "model.onnx").read_bytes()
    words = ["encrypt", str(models), "add_sub", "--key", key]
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW, at, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    names = sorted(each.name for each in version.iterdir())
    if at == "exchange after":
        assert names == [HEADER, "model.onnx.encrypted"]
    else:
        assert names == ["model.onnx"]
        assert (version / "model.onnx").read_bytes() == plain
        run(*words)
    # The next command removes what is left, plain text among it.
    run("decrypt", str(models), "add_sub", "--key", key)
    assert (version / "model.onnx").read_bytes() == plain
    assert sorted(each.name for each in models.iterdir()) == ["add_sub"]
    assert not (models / "add_sub" / key_name(1)).exists()


def test_the_key_is_in_no_command_line(models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor in the environment of a program that it runs."""
    hook = tmp_path / "hook"
    hook.write_text(f"#!{sys.executable}\nimport os\nopen({str(tmp_path / 'seen')!r}, 'w').write(repr(os.environ))\n")
    hook.chmod(0o755)
    monkeypatch.setenv("MODEL_KEY", KEY)
    run("encrypt", str(models), "add_sub", "--key", "env:MODEL_KEY", "--as-version", "2")
    monkeypatch.setenv("MODEL_KEY", KEY)
    words = ("--rewrap", "--version", "2", "--old-key", "env:MODEL_KEY", "--key", f"command:{hook}")
    run("encrypt", str(models), "add_sub", *words, status=1)
    wait_for((tmp_path / "seen").exists)
    assert "PATH" in (tmp_path / "seen").read_text()
    assert KEY not in (tmp_path / "seen").read_text()
    assert "MODEL_KEY" not in os.environ
