"""Similarity beside scikit-image's, whose definition it has."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from isochrone.worker.activation_cache.planes import Plane
from isochrone.worker.activation_cache.similarity import compare, key_plane

#: The greatest error that the documentation states.
STATED = 0.0005


@settings(max_examples=200, deadline=None)
@given(
    height=st.integers(7, 70),
    width=st.integers(7, 70),
    seed=st.integers(0, 2**32 - 1),
    level=st.floats(0, 1),
    contrast=st.sampled_from([0.0, 1e-3, 0.03, 0.3, 1.0]),
    change=st.sampled_from([0.0, 1e-4, 0.01, 0.1, 1.0]),
)
def test_the_mean_is_that_of_scikit_image(
    height: int, width: int, seed: int, level: float, contrast: float, change: float
) -> None:
    random = np.random.default_rng(seed)
    first = np.clip(level + contrast * random.standard_normal((height, width)), 0, 1)
    second = np.clip(first + change * random.standard_normal(first.shape), 0, 1)
    expected, windows = structural_similarity(first, second, data_range=1.0, full=True)
    key, other = (Plane(each.astype(np.float32).reshape(-1), height, width) for each in (first, second))
    found = compare(key_plane(key), other)
    assert abs(found.mean - expected) < STATED
    inside = windows[3 : height - 3, 3 : width - 3]
    assert inside.min() - STATED < found.least_block < inside.mean() + STATED
