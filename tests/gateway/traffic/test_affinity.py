"""Affinity keys: the same caller gives the same key, a sequence comes first, and different things never meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.traffic.affinity import Affinity, AffinityRules

BY_AGENT = AffinityRules(header="X-Agent-Id")


def test_without_rules_only_sequences_stick() -> None:
    affinity = Affinity(AffinityRules())
    assert affinity.header == b""
    assert affinity.key(b"", b"robot-7") == b""
    assert affinity.key(b"42", b"robot-7") != b""


def test_the_header_is_named_as_on_the_wire() -> None:
    assert Affinity(BY_AGENT).header == b"x-agent-id"


def test_a_sequence_wins_over_the_header_and_zero_is_none() -> None:
    affinity = Affinity(BY_AGENT)
    assert affinity.key(b"42", b"robot-7") == affinity.key(b"42", b"robot-8") == affinity.key(b"42")
    assert affinity.key(b"0", b"robot-7") == affinity.key(b"", b"robot-7")


def test_a_model_that_ignores_sequences_goes_by_the_header() -> None:
    affinity = Affinity(AffinityRules(header="x-agent-id", sequence=False))
    assert affinity.key(b"42", b"robot-7") == affinity.key(b"43", b"robot-7")


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_a_key_is_stable_bounded_and_never_taken_for_another_kind(sequence: bytes, value: bytes) -> None:
    affinity = Affinity(BY_AGENT)
    key = affinity.key(sequence, value)
    assert key == affinity.key(sequence, value)
    assert len(key) <= 257
    if sequence not in (b"", b"0") and value:
        assert key != affinity.key(b"", value)
