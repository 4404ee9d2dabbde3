"""The key of a fleet, and the keys that are derived from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.errors import FlagError
from isochrone.secure.fleet_key import FleetKey, read_fleet_key


def test_each_purpose_and_each_fleet_has_a_key_of_its_own() -> None:
    first, second = FleetKey(b"a" * 32), FleetKey(b"b" * 32)
    derived = {first.derived("store records"), first.derived("calls"), second.derived("store records")}
    assert len(derived) == 3
    assert {len(each) for each in derived} == {32}
    assert first.derived("calls") == FleetKey(b"a" * 32).derived("calls")


def test_a_key_is_shown_nowhere() -> None:
    assert "secretsecret" not in repr(FleetKey(b"secretsecretsecret"))


def test_white_space_at_the_ends_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"0123456789abcdef")
    (tmp_path / "line").write_bytes(b"0123456789abcdef\n")
    plain, line = read_fleet_key(tmp_path / "plain"), read_fleet_key(tmp_path / "line")
    assert plain is not None
    assert line is not None
    assert plain.derived("x") == line.derived("x")
    assert read_fleet_key(None) is None


@pytest.mark.parametrize("content", [b"", b"too short", b"x" * 5000])
def test_a_file_that_is_no_key_is_an_error_without_its_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FlagError, match=f"--fleet-key.*which has {len(content)}") as caught:
        read_fleet_key(tmp_path / "key")
    assert content.decode() not in str(caught.value) or not content


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match="No such file"):
        read_fleet_key(tmp_path / "none")
