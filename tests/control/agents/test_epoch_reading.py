"""Epoch records are read in steps, and what has not changed is not decoded again."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.agents import epoch_reading
from isochrone.control.agents.epoch_reading import EpochReader
from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.gateway.housekeeping import finished


def record(number: int, models: dict[str, Assignment]) -> bytes:
    return encode(EpochRecord(number, models, rollout=f"r{number}", by="leader", at=1.5))


def counted(steps: Generator[None, None, Any], counts: list[int]) -> list[int]:
    """How far a count got in each step."""
    found = []
    is_over = False
    while not is_over:
        before = sum(counts)
        is_over = next(steps, "over") == "over"
        found.append(sum(counts) - before)
    return found


def test_what_has_not_changed_is_the_same_object() -> None:
    reader = EpochReader()
    models = {f"m{number}": Assignment("1") for number in range(10)}
    first = finished(reader.read(record(1, models)))
    second = finished(reader.read(record(2, {**models, "m3": Assignment("2", epoch=2)})))
    assert second == decode(record(2, {**models, "m3": Assignment("2", epoch=2)}), EpochRecord)
    assert [name for name in models if first.models[name] is not second.models[name]] == ["m3"]


def test_a_step_decodes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counting(name: str, raw: Any) -> Assignment:
        decoded.append(1)
        return decode(bytes(raw), Assignment)

    monkeypatch.setattr(epoch_reading, "_assignment", counting)
    models = {f"m{number}": Assignment("1") for number in range(2000)}
    reader = EpochReader()
    per_step = counted(reader.read(record(1, models)), decoded)
    assert sum(per_step) == 2000
    assert max(per_step) <= epoch_reading._LOOKED_AT_PER_STEP // epoch_reading._DECODED
    assert len(counted(reader.read(record(2, models)), decoded)) <= 6, "all is known"
    assert len(decoded) == 2000


@pytest.mark.parametrize(
    "value",
    [b"{", b"[]", b'{"epoch":"x"}', b'{"epoch":3,"models":{"m":{"version":7}}}', b'{"epoch":3,"models":{"m":1}}'],
)
def test_one_that_cannot_be_read_changes_nothing(value: bytes) -> None:
    reader = EpochReader()
    first = finished(reader.read(record(1, {"m": Assignment("1")})))
    with pytest.raises(Unreadable):
        finished(reader.read(value))
    second = finished(reader.read(record(2, {"m": Assignment("1")})))
    assert second.models["m"] is first.models["m"]


ASSIGNMENTS = st.builds(
    Assignment,
    version=st.sampled_from("123"),
    digest=st.sampled_from(("", "a", "b")),
    canary=st.none() | st.builds(Split, version=st.sampled_from("45"), weight=st.floats(0, 1)),
    stages=st.sampled_from(((), ("a", "b"))),
    epoch=st.integers(0, 3),
)


@given(st.lists(st.dictionaries(st.sampled_from("abcde"), ASSIGNMENTS), max_size=6))
def test_any_sequence_is_read_as_if_each_was_the_first(epochs: list[dict[str, Assignment]]) -> None:
    reader = EpochReader()
    for number, models in enumerate(epochs, 1):
        value = record(number, models)
        assert finished(reader.read(value)) == decode(value, EpochRecord)
