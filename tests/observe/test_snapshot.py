"""The buckets every histogram shares."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, Histogram


def test_bounds_run_from_50_us_to_10_s_in_fine_steps() -> None:
    assert BUCKET_BOUNDS_NS[0] == 50_000
    assert BUCKET_BOUNDS_NS[-1] == 10_000_000_000
    assert len(BUCKET_BOUNDS_NS) >= 24
    assert all(1.3 < upper / lower < 1.7 for lower, upper in pairwise(BUCKET_BOUNDS_NS))


def test_a_histogram_counts_what_is_in_all_its_buckets() -> None:
    counts = np.zeros(len(BUCKET_BOUNDS_NS) + 1, dtype=np.int64)
    counts[3], counts[-1] = 4, 5
    assert Histogram(counts, 17).count == 9
