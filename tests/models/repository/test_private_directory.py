"""Private directories: who removes them, and what is never removed."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from isochrone.models.repository.private_directory import PrivateDirectory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def left_behind(directory: Path) -> Path:
    """As a killed process leaves it."""
    directory.mkdir()
    (directory / "lock").touch()
    return directory


def test_it_is_readable_for_its_user_alone_and_goes_with_its_object(place: Path) -> None:
    directory = PrivateDirectory("verified")
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    del directory
    assert list(place.iterdir()) == []


def test_the_next_removes_what_a_killed_process_left(place: Path) -> None:
    left = left_behind(place / "isochrone-verified-left")
    first = PrivateDirectory("verified")
    assert not left.exists()
    second = PrivateDirectory("verified")
    assert first.path.exists()
    assert second.path.exists()


def test_links_and_other_directories_are_left_alone(place: Path, tmp_path: Path) -> None:
    victim = left_behind(tmp_path / "victim")
    (place / "isochrone-verified-link").symlink_to(victim)
    other = left_behind(place / "other")
    unlocked = place / "isochrone-verified-new"
    unlocked.mkdir()
    directory = PrivateDirectory("verified")
    assert directory.path.exists()
    assert (victim / "lock").exists()
    assert other.exists()
    # Its process is about to name its lock.
    assert unlocked.exists()


def test_a_forked_child_that_ends_leaves_it_to_its_parent(place: Path) -> None:
    directory = PrivateDirectory("verified")
    child = os.fork()
    if not child:
        directory._finalizer()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert directory.path.exists()
