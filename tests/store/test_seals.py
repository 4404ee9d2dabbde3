"""Seals of values: nothing but the same value under the same key of the store is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.state.codec import Unreadable, decode, encode
from isochrone.control.state.records import EpochRecord
from isochrone.store.seals import NO_SEAL, WRONG_SEAL, Seal, refusal, refused

OURS, THEIRS = b"k" * 32, b"t" * 32
SEAL = Seal((OURS,))
KEYS = st.text(min_size=1, max_size=40)
VALUES = st.binary(max_size=300)


@given(KEYS, VALUES)
def test_what_is_sealed_is_opened_with_and_without_the_key(key: str, value: bytes) -> None:
    written = SEAL.seal(key, value)
    assert SEAL.open(key, written) == (value, True)
    assert Seal().open(key, written) == (value, True)
    assert Seal((OURS,), accepts_unsealed=True).open(key, written) == (value, True)


@given(KEYS, KEYS, VALUES)
def test_a_value_cannot_be_moved_to_another_key(key: str, other: str, value: bytes) -> None:
    found, is_sealed = SEAL.open(other, SEAL.seal(key, value))
    assert (found, is_sealed) == ((value, True) if key == other else (refused(WRONG_SEAL), False))


@given(KEYS, VALUES, st.integers(0, 40))
def test_neither_can_a_part_of_the_key_become_a_part_of_the_value(key: str, value: bytes, cut: int) -> None:
    name = key.encode()
    cut = min(cut, len(name))
    try:
        shorter = name[:cut].decode()
    except UnicodeDecodeError:
        return
    moved = name[cut:] + SEAL.seal(key, value)
    if cut < len(name):
        assert refusal(SEAL.open(shorter, moved)[0])


@given(KEYS, VALUES, st.data())
def test_no_bit_can_be_flipped(key: str, value: bytes, data: st.DataObject) -> None:
    written = bytearray(SEAL.seal(key, value))
    at = data.draw(st.integers(0, 8 * len(written) - 1))
    written[at // 8] ^= 1 << at % 8
    found, is_sealed = SEAL.open(key, bytes(written))
    assert refusal(found)
    assert not is_sealed


@given(KEYS, VALUES, st.data())
def test_nothing_can_be_cut_off_or_added(key: str, value: bytes, data: st.DataObject) -> None:
    written = SEAL.seal(key, value)
    cut = data.draw(st.integers(1, len(written)))
    for other in (written[:-cut], written[cut:], written + b"\n", b" " + written):
        assert refusal(SEAL.open(key, other)[0])


@given(KEYS, VALUES)
def test_a_value_without_a_seal_is_accepted_only_on_request(key: str, value: bytes) -> None:
    assert SEAL.open(key, value) == (refused(NO_SEAL), False)
    assert Seal((OURS,), accepts_unsealed=True).open(key, value) == (value, False)
    assert Seal().open(key, value) == (value, False)


@given(KEYS, VALUES)
def test_a_wrong_seal_is_never_accepted(key: str, value: bytes) -> None:
    written = Seal((THEIRS,)).seal(key, value)
    for seal in (SEAL, Seal((OURS,), accepts_unsealed=True)):
        assert seal.open(key, written) == (refused(WRONG_SEAL), False)


@given(KEYS, VALUES)
def test_every_key_is_accepted_and_the_first_one_seals(key: str, value: bytes) -> None:
    both = Seal((THEIRS, OURS))
    assert both.open(key, SEAL.seal(key, value)) == (value, False)
    assert both.seal(key, value) == Seal((THEIRS,)).seal(key, value)
    assert both.open(key, both.seal(key, value)) == (value, True)


@given(KEYS, VALUES)
def test_a_sealed_value_is_a_value_too(key: str, value: bytes) -> None:
    twice = SEAL.seal(key, SEAL.seal(key, value))
    assert SEAL.open(key, twice) == (SEAL.seal(key, value), True)


def test_a_refused_value_is_no_record_and_says_why() -> None:
    with pytest.raises(Unreadable, match=NO_SEAL):
        decode(SEAL.open("/epoch", encode(EpochRecord(3)))[0], EpochRecord)
    assert refusal(encode(EpochRecord(3))) == refusal(b"") == refusal(b"12") == ""
    assert not refused(NO_SEAL).isdigit()


def test_a_forger_cannot_write_the_reason() -> None:
    assert SEAL.open("/k", refused("nothing is wrong"))[0] == refused(NO_SEAL)
