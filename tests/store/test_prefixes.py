"""A prefix as a range: exactly the keys that begin with it, in the order of UTF-8 bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from isochrone.store.prefixes import first_after

#: Without surrogates: they are no characters and have no UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(TEXTS, TEXTS)
@example("a\U0010ffff", "a\U0010ffff")
@example("\ud7ff", "\ue000")
@example("", "a")
def test_the_range_is_the_prefix(prefix: str, key: str) -> None:
    end = first_after(prefix)
    for candidate in (key, prefix + key):
        inside = candidate.encode() >= prefix.encode() and (end is None or candidate.encode() < end.encode())
        assert inside == candidate.startswith(prefix)
