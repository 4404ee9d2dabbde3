"""Shadow copies: their share, and bounds in number and bytes that hold over any schedule."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.shadow import Shadow, ShadowRules


def test_the_share_is_accurate() -> None:
    shadow = Shadow(ShadowRules(share=0.1, version="2", max_in_flight=20_000), Random(3))
    copied = sum(shadow.take(Kind.STATELESS, 1) for _ in range(10_000))
    assert 880 < copied < 1_120
    assert shadow.copied == shadow.in_flight == copied


@pytest.mark.parametrize("kind", [Kind.SEQUENCE, Kind.STREAM])
def test_requests_with_effects_are_never_copied(kind: Kind) -> None:
    shadow = Shadow(ShadowRules(share=1, version="2"), Random(3))
    assert not any(shadow.take(kind, 1) for _ in range(100))


def test_without_a_share_nothing_is_copied() -> None:
    assert not Shadow(ShadowRules(), Random(3)).take(Kind.STATELESS, 1)


@given(st.lists(st.integers(0, 60) | st.none(), max_size=200))
def test_never_more_in_flight_than_the_rules_say(sizes: list[int | None]) -> None:
    """A size: a request of so many bytes comes; None: the oldest copy ends."""
    rules = ShadowRules(share=1, version="2", max_in_flight=4, max_in_flight_bytes=100)
    shadow, under_way, drawn = Shadow(rules, Random(3)), list[int](), 0
    for size in sizes:
        if size is None:
            if under_way:
                shadow.ended(under_way.pop(0))
            continue
        drawn += 1
        fits = len(under_way) < 4 and sum(under_way) + size <= 100
        assert shadow.take(Kind.STATELESS, size) == fits
        under_way += [size] if fits else []
        assert (shadow.in_flight, shadow.bytes) == (len(under_way), sum(under_way))
    assert shadow.copied + shadow.left_out == drawn
