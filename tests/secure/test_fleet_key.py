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


def test_each_line_is_a_key_and_the_first_one_is_the_fleets(tmp_path: Path) -> None:
    old, new = b"o" * 16, b"n" * 32
    (tmp_path / "key").write_bytes(new + b"\r\n\n" + old + b"\n")
    both = read_fleet_key(tmp_path / "key")
    assert both is not None
    assert both.derived("x") == FleetKey(new).derived("x")
    assert both.all_derived("x") == (FleetKey(new).derived("x"), FleetKey(old).derived("x"))


def test_a_line_that_could_be_guessed_is_an_error_without_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"n" * 32 + b"\nhunter2\n")
    with pytest.raises(FlagError, match="whose line 2 has 7") as caught:
        read_fleet_key(tmp_path / "key")
    assert "hunter2" not in str(caught.value)


def test_a_key_that_is_no_text_is_one_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff" * 15 + b"\n" + b"\xfe" * 15)
    key = read_fleet_key(tmp_path / "key")
    assert key is not None
    assert len(key.all_derived("x")) == 1
