"""Values with units: the written form becomes the exact number, and everything else is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from isochrone.control.fleet.settings.quantities import (
    bytes_text,
    join_address,
    parse_bytes,
    parse_milliseconds,
    parse_seconds,
    parse_share,
    parse_version,
    split_address,
)

AMOUNTS = st.integers(0, 2**50)


@given(AMOUNTS)
def test_bytes_are_written_so_that_they_are_read_the_same(amount: int) -> None:
    assert parse_bytes(bytes_text(amount)) == amount
    assert parse_bytes(amount) == amount


@given(st.integers(0, 9999), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]), st.sampled_from(["", " "]))
def test_binary_units_are_powers_of_1024(number: int, unit: str, gap: str) -> None:
    power = ["KiB", "MiB", "GiB", "TiB"].index(unit) + 1
    assert parse_bytes(f"{number}{gap}{unit}") == number * 1024**power
    assert parse_bytes(f"{number}{unit[:2]}") == number * 1024**power


@pytest.mark.parametrize(
    ("text", "amount"), [("1.5GiB", 1536 << 20), ("1GB", 10**9), ("2kB", 2000), ("7B", 7), ("0.1B", 0), ("0MiB", 0)]
)
def test_bytes(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


NO_BYTES: list[object] = ["", "GiB", "-2GiB", "2GiB extra", "1e3MiB", "2", "2lightyears", "99999999TiB"]
NO_BYTES += [-1, 1.5, True, None, [], 2**63]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("2gib", "2GiB"), ("2G", "2GiB"), ("3mib", "3MiB"), ("2kb", "2kB"), *((given, None) for given in NO_BYTES)],
)
def test_wrong_bytes_are_told(given: object, meant: str | None) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse_bytes(given)
    expected = caught.value.context["expected"] if caught.value.context else ""
    assert expected.startswith("a number of bytes such as 200MiB, 2GiB or 1500000000")
    assert expected.endswith(f"(did you mean '{meant}'?)") == (meant is not None)


@given(st.integers(0, 10**6))
def test_times_agree_whatever_their_unit(milliseconds: int) -> None:
    for text in (milliseconds, f"{milliseconds}ms", f"{milliseconds * 1000}us", f"{milliseconds / 1000:.3f}s"):
        assert parse_milliseconds(text) == milliseconds
        assert parse_seconds(text) == (milliseconds if text == milliseconds else milliseconds / 1000)


def test_minutes_and_hours() -> None:
    assert parse_seconds("5min") == 300
    assert parse_seconds("1.5h") == 5400
    assert parse_milliseconds("1min") == 60_000


@pytest.mark.parametrize(
    ("given", "meant"), [("5 sec", "5s"), ("5m", "5min"), ("5parsecs", None), ("", None), (True, None)]
)
def test_wrong_times_are_told(given: object, meant: str | None) -> None:
    with pytest.raises(PydanticCustomError, match="a number of seconds") as caught:
        parse_seconds(given)
    assert ("did you mean" in str(caught.value)) == (meant is not None)
    assert meant is None or f"'{meant}'" in str(caught.value)


@given(st.integers(0, 1000))
def test_shares_agree_as_numbers_and_as_percent(thousandths: int) -> None:
    assert parse_share(f"{thousandths / 10}%") == pytest.approx(thousandths / 1000, abs=1e-15)
    assert parse_share(thousandths / 1000) == thousandths / 1000


@pytest.mark.parametrize("given", ["101%", 1.01, -0.1, "5", "five", True, None, float("nan")])
def test_wrong_shares_are_told(given: object) -> None:
    with pytest.raises(PydanticCustomError, match=r"a share such as 5% or 0.05"):
        parse_share(given)


@given(st.integers(1, 2**59))
def test_versions_are_numbers_as_text(number: int) -> None:
    assert parse_version(number) == parse_version(str(number)) == str(number)


@pytest.mark.parametrize("given", [0, -1, "01", "v1", "1.0", 1.0, True, "newest", "", None])
def test_wrong_versions_are_told(given: object) -> None:
    with pytest.raises(PydanticCustomError, match="a version such as 1, or latest"):
        parse_version(given)


@given(st.sampled_from(["127.0.0.1", "::1", "workers.local"]), st.integers(0, 65535))
def test_addresses_come_apart_and_together(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)
