"""Made pictures of cameras at 30 frames a second. Pure: the same seed makes the same bytes.

A scene is a large picture of soft structures of several sizes and hard-edged rectangles. A camera sees a part of it,
from a position in fractions of a pixel, with noise of its own in every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

SIDE = 224
_SCENE = 512
#: Standard deviation of a camera's noise, of 255.
NOISE = 2.0


class Frame(NamedTuple):
    """One picture, and the parameters of its request."""

    picture: Array
    parameters: dict[str, str]
    #: Which scene it shows: an answer must not be of another.
    scene: int = 0


def scene(seed: int) -> Array:
    random = np.random.default_rng(seed)
    picture = np.full((_SCENE, _SCENE, 3), 110.0)
    for cells, strength in ((4, 45.0), (16, 25.0), (64, 10.0), (256, 4.0)):
        coarse = random.standard_normal((cells + 1, cells + 1, 3)) * strength
        at = np.linspace(0, cells, _SCENE, endpoint=False)
        picture += _interpolated(coarse, at, at)
    for _ in range(40):
        top, left = random.integers(0, _SCENE - 60, 2)
        height, width = random.integers(10, 60, 2)
        picture[top : top + height, left : left + width] = random.integers(20, 235, 3)
    return np.clip(picture, 0, 255)


def _interpolated(picture: Array, rows: Array, columns: Array) -> Array:
    """Bilinear, at fractional rows and columns."""
    top, left = rows.astype(int), columns.astype(int)
    bottom, right = np.minimum(top + 1, len(picture) - 1), np.minimum(left + 1, picture.shape[1] - 1)
    down, across = (rows - top)[:, None, None], (columns - left)[None, :, None]
    above = picture[top][:, left] * (1 - across) + picture[top][:, right] * across
    below = picture[bottom][:, left] * (1 - across) + picture[bottom][:, right] * across
    mixed: Array = above * (1 - down) + below * down
    return mixed


def seen(whole: Array, x: float, y: float, random: np.random.Generator, noise: float = NOISE) -> Array:
    """What a camera at a position sees."""
    sides = np.arange(SIDE)
    view = _interpolated(whole, sides + y, sides + x)
    if noise:
        view = view + random.standard_normal(view.shape) * noise
    return np.clip(np.round(view), 0, 255).astype(np.uint8)


def still(count: int) -> Iterator[Frame]:
    """A camera that does not move: only noise changes."""
    whole, random = scene(1), np.random.default_rng(2)
    for _ in range(count):
        yield Frame(seen(whole, 100, 100, random), {"camera": "still"})


def slow_pan(count: int) -> Iterator[Frame]:
    """3 pixels a second: from one side of the picture to the other in 75 seconds."""
    whole, random = scene(3), np.random.default_rng(4)
    for index in range(count):
        yield Frame(seen(whole, 20 + 0.1 * index, 100, random), {"camera": "pan"})


def sudden_cut(count: int) -> Iterator[Frame]:
    """Another scene from the middle on."""
    random = np.random.default_rng(5)
    scenes = (scene(6), scene(7))
    for index in range(count):
        which = int(index >= count // 2)
        yield Frame(seen(scenes[which], 50, 50, random), {"camera": "cut"}, which)


def two_agents(count: int) -> Iterator[Frame]:
    """Two agents in turn over one tile, a third of a pixel apart: the second computes little of its own."""
    whole, random = scene(8), np.random.default_rng(9)
    for index in range(count):
        agent = index % 2
        view = seen(whole, 60 + 0.05 * index + 0.33 * agent, 60, random)
        yield Frame(view, {"camera": f"agent-{agent}", "tile": "18/137433/87960"})


def pedestrian(count: int) -> Iterator[Frame]:
    """A still scene, which a small figure crosses: 1 % of the picture."""
    whole, random = scene(10), np.random.default_rng(11)
    for index in range(count):
        view = seen(whole, 100, 100, random)
        left = 10 + index
        crosses = index >= count // 3 and left + 14 < SIDE
        if crosses:
            view[90:126, left : left + 14] = (220, 200, 30)
        yield Frame(view, {"camera": "crossing"}, int(crosses))


def drift(count: int) -> Iterator[Frame]:
    """Each picture differs from the one before by 1/count, until nothing is left of the first."""
    first, last, random = scene(12), scene(13), np.random.default_rng(14)
    start, end = seen(first, 30, 30, random, 0.0), seen(last, 30, 30, random, 0.0)
    for index in range(count):
        share = index / (count - 1)
        mixed = start * (1 - share) + end * share
        yield Frame(np.round(mixed).astype(np.uint8), {"camera": "drift"})
