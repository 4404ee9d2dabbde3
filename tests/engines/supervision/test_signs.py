"""When a process counts as lost."""

from __future__ import annotations

from isochrone.engines.supervision.signs import LOST_SECONDS, SignsOfLife


def test_a_process_is_lost_after_a_while_without_any_sign() -> None:
    signs = SignsOfLife()
    signs.seen("a", 10.0)
    assert signs.lost({"a"}, 10.0 + LOST_SECONDS - 0.1) == frozenset()
    assert signs.lost({"a"}, 10.0 + LOST_SECONDS) == {"a"}
    signs.seen("a", 20.0)
    assert signs.lost({"a"}, 20.5) == frozenset()


def test_one_that_was_never_seen_has_the_same_time() -> None:
    signs = SignsOfLife()
    assert signs.lost({"a"}, 5.0) == frozenset()
    assert signs.lost({"a"}, 5.0 + LOST_SECONDS) == {"a"}
    signs.forget("a")
    assert signs.lost({"a"}, 100.0) == frozenset()
