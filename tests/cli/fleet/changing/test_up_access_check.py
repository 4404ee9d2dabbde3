"""`isochrone up` of a fleet that continues looks at the access file as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.cli.fleet.changing.up import check_access
from isochrone.control.state.records import FleetRecord
from isochrone.settings.problems import SettingsError


def record_in(directory: Path) -> FleetRecord:
    spec = {"name": "plant", "repository": "models", "pools": {}, "models": {}, "security": {"access": "access.yaml"}}
    return FleetRecord(1, "", spec, str(directory))


@pytest.mark.parametrize("text", ["tokens: [", "tokenz: {}", "assign: [{to: ['token:a'], roles: [nobody]}]"])
def test_a_broken_file_ends_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "access.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"access\.yaml"):
        check_access(record_in(tmp_path))


def test_a_good_file_and_one_on_other_machines_do_not(tmp_path: Path) -> None:
    check_access(record_in(tmp_path))
    (tmp_path / "access.yaml").write_text("anonymous: [health]\n")
    check_access(record_in(tmp_path))
