"""Wheels: interpreted where compiling is off, compiled where it is on, an error that names what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=900)


def names_of(folder: Path) -> tuple[str, list[str]]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return wheel.name, file.namelist()


def version(folder: Path, home: Path) -> str:
    """What the program of an unpacked wheel says of itself."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(home)
    command = [sys.executable, "-m", "isochrone", "--version"]
    environment = os.environ | {"PYTHONPATH": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def test_without_compiling_one_wheel_fits_all(tmp_path: Path) -> None:
    made = build(tmp_path, ISOCHRONE_COMPILE="0")
    assert made.returncode == 0, made.stderr
    name, names = names_of(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    assert not [each for each in names if each.endswith(".so")]
    assert version(tmp_path, tmp_path / "home").endswith("(interpreted)\n")


def test_a_compiler_that_is_asked_for_and_missing_is_an_error(tmp_path: Path) -> None:
    made = build(tmp_path, ISOCHRONE_COMPILE="1", CC="no-such-compiler")
    assert made.returncode != 0
    assert "needs a C compiler and Python's headers (Debian: gcc python3-dev)" in made.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_another_value_of_the_switch_is_an_error(tmp_path: Path) -> None:
    made = build(tmp_path, ISOCHRONE_COMPILE="yes")
    assert made.returncode != 0
    assert "ISOCHRONE_COMPILE='yes': expected 1 (compile or fail), 0 (interpreted), or unset" in made.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_compiled_wheel_holds_source_and_extension_modules(tmp_path: Path) -> None:
    made = build(tmp_path, ISOCHRONE_COMPILE="1")
    assert made.returncode == 0, made.stderr
    name, names = names_of(tmp_path)
    assert "none-any" not in name
    assert "isochrone/wire/turn.py" in names
    assert [each for each in names if each.startswith("isochrone/wire/turn.") and each.endswith(".so")]
    assert version(tmp_path, tmp_path / "home").endswith("(compiled)\n")
