"""Similarity of planes, planes of every layout, and what has none; beside scikit-image in ``test_ssim_definition``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.worker.activation_cache.planes import Plane, Reduction
from isochrone.worker.activation_cache.similarity import Similarity, compare, key_plane

Array = np.ndarray[Any, Any]


def plane_of(pixels: Array) -> Plane:
    height, width = pixels.shape
    return Plane(pixels.astype(np.float32).reshape(-1), height, width)


def square(plane: Plane | None) -> Array:
    assert plane is not None
    return plane.pixels.reshape(plane.height, plane.width)


def similarity(first: Array, second: Array) -> Similarity:
    return compare(key_plane(plane_of(first)), plane_of(second))


def test_equal_planes_are_entirely_similar() -> None:
    pixels = np.random.default_rng(0).random((48, 48))
    found = similarity(pixels, pixels)
    assert found.mean == pytest.approx(1, abs=1e-5)
    assert found.least_block == pytest.approx(1, abs=1e-5)


def test_a_block_shows_what_the_mean_hides() -> None:
    random = np.random.default_rng(1)
    street = np.kron(random.random((12, 12)), np.ones((4, 4)))
    changed = street.copy()
    changed[20:27, 30:33] = 1 - changed[20:27, 30:33]
    found = similarity(street, changed)
    assert found.mean > 0.95
    assert found.least_block < 0.75


def test_every_layout_of_one_picture_has_the_same_plane() -> None:
    picture = np.random.default_rng(2).integers(0, 256, (150, 200, 3)).astype(np.uint8)
    expected = square(Reduction("HWC", 48, 0.0, 255.0).plane(picture))
    moved = np.moveaxis(picture, -1, 0)
    assert np.allclose(square(Reduction("CHW", 48, 0.0, 255.0).plane(moved)), expected)
    scaled = (moved / 255).astype(np.float32)
    assert np.allclose(square(Reduction("CHW", 48, 0.0, 1.0).plane(scaled)), expected, atol=1e-5)
    centred = (scaled * 4 - 2).astype(np.float32)
    assert np.allclose(square(Reduction("CHW", 48, -2.0, 4.0).plane(centred)), expected, atol=1e-5)


@given(
    height=st.integers(17, 200),
    width=st.integers(17, 200),
    side=st.integers(16, 96),
    floor=st.sampled_from([0.0, -8.0]),
)
@settings(max_examples=100, deadline=None)
def test_interleaved_bytes_have_the_plane_of_other_layouts(height: int, width: int, side: int, floor: float) -> None:
    """They have a path of their own, which never reads beyond the picture."""
    picture = np.random.default_rng(height * width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    found = Reduction("HWC", side, floor, 255.0).plane(picture)
    expected = Reduction("CHW", side, floor, 255.0).plane(np.moveaxis(picture, -1, 0))
    assert found is not None
    assert expected is not None
    assert (found.height, found.width) == (expected.height, expected.width)
    assert np.allclose(found.pixels, expected.pixels, atol=1e-6)
    # A view that is not contiguous.
    wider = np.zeros((height, width + 5, 3), np.uint8)
    wider[:, :width] = picture
    assert np.allclose(
        square(Reduction("HWC", side, floor, 255.0).plane(wider[:, :width])), square(expected), atol=1e-6
    )


def test_comparisons_of_several_threads_do_not_disturb_each_other() -> None:
    random = np.random.default_rng(4)
    planes = [plane_of(random.random((48, 48))) for _ in range(8)]
    keys = [key_plane(plane) for plane in planes]
    expected = [[compare(key, plane) for plane in planes] for key in keys]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(lambda key: [compare(key, plane) for plane in planes], keys)) == expected


def test_a_plane_is_the_mean_of_the_points_that_it_reads() -> None:
    picture = np.random.default_rng(3).integers(0, 256, (192, 192)).astype(np.uint8)
    points = picture[1::2, 1::2] / 255
    expected = (points[::2, ::2] + points[1::2, ::2] + points[::2, 1::2] + points[1::2, 1::2]) / 4
    assert np.allclose(square(Reduction("HW", 48, 0.0, 255.0).plane(picture)), expected, atol=1e-5)


@given(height=st.integers(1, 300), width=st.integers(1, 300), side=st.integers(16, 96))
@settings(max_examples=100, deadline=None)
def test_a_plane_is_never_larger_than_its_side_nor_smaller_than_a_window(height: int, width: int, side: int) -> None:
    plane = Reduction("HW", side, 0.0, 255.0).plane(np.zeros((height, width), np.uint8))
    if min(height, width) < 7:
        assert plane is None
    else:
        assert plane is not None
        assert 7 <= plane.height <= side
        assert 7 <= plane.width <= side


@pytest.mark.parametrize("shape", [(0, 64, 3), (64, 0, 3), (64, 64, 0), (6, 64, 3)])
def test_pictures_of_too_few_pixels_have_no_plane(shape: tuple[int, ...]) -> None:
    assert Reduction("HWC", 48, 0.0, 255.0).plane(np.zeros(shape, np.uint8)) is None


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_pictures_of_other_channels_have_no_plane(channels: int) -> None:
    assert Reduction("HWC", 48, 0.0, 255.0).plane(np.zeros((64, 64, channels), np.uint8)) is None
    assert Reduction("CHW", 48, 0.0, 1.0).plane(np.zeros((channels, 64, 64), np.float32)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 255.0, -40.0])
def test_values_far_outside_of_the_range_have_no_plane(value: float) -> None:
    picture = np.zeros((3, 64, 64), np.float32)
    picture[:, 30:40, 30:40] = value
    assert Reduction("CHW", 48, 0.0, 1.0).plane(picture) is None


def test_bytes_in_a_range_that_is_too_small_have_no_plane() -> None:
    picture = np.full((64, 64), 200, np.uint8)
    assert Reduction("HW", 48, 0.0, 1.0).plane(picture) is None
    assert Reduction("HW", 48, 0.0, 255.0).plane(picture) is not None
