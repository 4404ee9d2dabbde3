"""Which files leave a full cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.models.sources.cache.eviction import CachedFile, to_evict

_FILES = st.lists(
    st.builds(CachedFile, st.text("abcdef", min_size=4), st.integers(0, 100), st.floats(0, 9), st.booleans()),
    max_size=12,
    unique_by=lambda file: file.name,
)


@given(_FILES, st.integers(0, 300), st.integers(0, 500))
def test_the_new_bytes_fit_and_nothing_in_use_goes(files: list[CachedFile], needed: int, limit: int) -> None:
    chosen = to_evict(files, needed, limit)
    in_use = sum(file.size for file in files if file.in_use)
    if chosen is None:
        assert in_use + needed > limit
        return
    assert not any(file.in_use for file in chosen)
    assert sum(file.size for file in files) - sum(file.size for file in chosen) + needed <= limit


@given(_FILES, st.integers(0, 300), st.integers(0, 500))
def test_no_more_goes_than_must_and_the_oldest_first(files: list[CachedFile], needed: int, limit: int) -> None:
    chosen = to_evict(files, needed, limit) or []
    kept = [file for file in files if file not in chosen and not file.in_use]
    if chosen:
        assert sum(file.size for file in files) - sum(file.size for file in chosen[:-1]) + needed > limit
        assert all(file.last_used >= chosen[-1].last_used for file in kept)
