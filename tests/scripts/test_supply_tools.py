"""The tools of locks/tools.txt at work: lists of packages that satisfy CycloneDX, and audits that ask a copy of OSV.

``make test-long`` installs them into .venv-supply, with the hashes of the lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from documented import ROOT
from scripts.lock import LOCKS, read_lock

TOOLS = ROOT / ".venv-supply" / "bin" / "python"

pytestmark = pytest.mark.long


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert TOOLS.exists(), "make test-long installs the tools"
    return subprocess.run([TOOLS, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def database(path: Path, package: str, fixed: str) -> Path:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]
    affected = [{"package": {"name": package, "ecosystem": "PyPI"}, "ranges": ranges}]
    entry = {"schema_version": "1.4.0", "id": "TEST-1", "modified": "2026-01-01T00:00:00Z", "affected": affected}
    path.mkdir()
    (path / "TEST-1.json").write_text(json.dumps(entry))
    return path


def test_a_vulnerability_of_one_locked_version_is_found_and_the_other_is_not(tmp_path: Path) -> None:
    older, newer = (pin.version for pin in read_lock(LOCKS / "image.txt") if pin.name == "numpy")
    ended = run("scripts/audit.py", "--database", database(tmp_path / "one", "numpy", newer), "image")
    assert ended.returncode == 1, ended.stderr
    assert f"locks/image.txt: numpy {older}: TEST-1, fixed in {newer}" in ended.stdout
    assert f"numpy {newer}:" not in ended.stdout
    ended = run("scripts/audit.py", "--database", database(tmp_path / "two", "leftpad", "9"), "image")
    assert ended.returncode == 0, ended.stdout
    assert "packages, no known vulnerabilities" in ended.stdout


def test_what_cannot_be_asked_is_said_and_is_no_success(tmp_path: Path) -> None:
    ended = run("scripts/audit.py", "--database", tmp_path / "absent.zip", "image")
    assert ended.returncode == 2
    (tmp_path / "broken.zip").write_text("no zip")
    ended = run("scripts/audit.py", "--database", tmp_path / "broken.zip", "image")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("--database: ")


def test_the_packages_of_an_image_and_of_an_environment_are_listed(tmp_path: Path) -> None:
    cyclonedx = ("-W", "ignore", "-m", "cyclonedx_py")
    options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--validate", "-o")
    ended = run(*cyclonedx, "requirements", "locks/image.txt", *options, tmp_path / "image.json")
    assert ended.returncode == 0, ended.stderr
    listed = json.loads((tmp_path / "image.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    pins = {(pin.name, pin.version) for pin in read_lock(LOCKS / "image.txt")}
    assert {(each["name"], each["version"]) for each in listed["components"]} == pins
    ended = run(*cyclonedx, "environment", sys.executable, *options, tmp_path / "environment.json")
    assert ended.returncode == 0, ended.stderr
    installed = {each["name"].lower() for each in json.loads((tmp_path / "environment.json").read_text())["components"]}
    assert {"msgspec", "pytest", "hypothesis"} <= installed


def test_the_same_environment_is_listed_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(
            "-W",
            "ignore",
            "-m",
            "cyclonedx_py",
            "environment",
            str(TOOLS),
            "--output-reproducible",
            "-o",
            tmp_path / name,
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
