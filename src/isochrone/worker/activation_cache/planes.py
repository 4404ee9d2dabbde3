"""Reduced luminance planes of pictures, which are compared instead of them. Pure, in numpy.

``Reduction`` reads a grid of points of a picture, not all of its pixels. Nothing between the points is seen.

Pictures of bytes with interleaved channels take a path of their own, in half of the time: the three bytes of a point
are read at once, and four points are added as integers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

#: The axes of a picture without its batch dimension.
LAYOUTS: Final = ("HWC", "CHW", "HW")
#: Channels of a picture: luminance, or red, green and blue. What others mean is not known.
CHANNELS: Final = (1, 3)
#: The side of a window of the comparison. A plane must be as large.
WINDOW: Final = 7

Picture = np.ndarray[Any, np.dtype[Any]]
Floats = npt.NDArray[np.float32]

#: ITU-R BT.601.
_RED, _GREEN, _BLUE = np.float32(0.299), np.float32(0.587), np.float32(0.114)


class Plane(NamedTuple):
    """A reduced luminance plane, values from 0 to 1, flat."""

    pixels: Floats
    height: int
    width: int


class Reduction(NamedTuple):
    """How pictures of one model become planes."""

    layout: str
    #: The largest height and width of a plane.
    side: int
    #: The smallest value of a picture, and the largest less the smallest.
    floor: float
    data_range: float

    def plane(self, picture: Picture) -> Plane | None:
        """The plane of one picture, without a batch dimension.

        None: it is too small for one window, has other channels, or has values far outside of the range. Of those,
        float32 would keep too few digits for variances, and a similarity could be any number.
        """
        if picture.dtype.char == "B" and (points := _byte_points(self, picture.shape)) and picture.flags.c_contiguous:
            return points.plane(picture)
        if not picture.size or not self._has_known_channels(picture.shape):
            return None
        if picture.dtype == np.uint8 and self.covers_bytes:
            grey = self._grey(picture)
        else:
            with np.errstate(all="ignore"):
                grey = self._grey(picture)
            if not (grey.min() >= -1 and grey.max() <= 2):
                return None
        if min(grey.shape) < WINDOW:
            return None
        return Plane(grey.reshape(-1), *grey.shape)

    @property
    def covers_bytes(self) -> bool:
        """Whether no byte is far outside of the range: looking costs as much as the points when caches are cold."""
        return -self.floor >= -self.data_range and 255 - self.floor <= 2 * self.data_range

    def _has_known_channels(self, shape: tuple[int, ...]) -> bool:
        return self.layout == "HW" or shape[self.layout.index("C")] in CHANNELS

    def _grey(self, picture: Picture) -> Floats:
        height, width = picture.shape[-2:] if self.layout != "HWC" else picture.shape[:2]
        rows, columns = _step(height, self.side), _step(width, self.side)
        down, across = slice(rows // 2, None, rows), slice(columns // 2, None, columns)
        if self.layout == "HW":
            grey: Floats = picture[down, across].astype(np.float32)
        else:
            points = picture[down, across].transpose(2, 0, 1) if self.layout == "HWC" else picture[:, down, across]
            grey = _luminance(points) if len(points) == 3 else points[0].astype(np.float32)
        scale = 1 / self.data_range
        if height > self.side:
            scale /= 2
            even = len(grey) // 2 * 2
            grey = grey[:even:2] + grey[1:even:2]
        if width > self.side:
            scale /= 2
            even = grey.shape[1] // 2 * 2
            grey = grey[:, :even:2] + grey[:, 1:even:2]
        grey *= np.float32(scale)
        if self.floor:
            grey -= np.float32(self.floor / self.data_range)
        return grey


def _step(length: int, side: int) -> int:
    """Pixels from one point to the next: two points for each pixel of the plane, whose mean halves the noise."""
    return 1 if length <= side else -(-length // (2 * side))


def _luminance(channels: Picture) -> Floats:
    grey: Floats = channels[0].astype(np.float32)
    grey *= _RED
    for channel, weight in ((channels[1], _GREEN), (channels[2], _BLUE)):
        other = channel.astype(np.float32)
        other *= weight
        grey += other
    return grey


class _BytePoints(NamedTuple):
    """Where the points of a contiguous picture of interleaved bytes are, and what their bytes weigh."""

    #: The first and the second row of points for each row of the plane, with two points for each of its pixels.
    shape: tuple[int, int, int]
    #: In bytes.
    strides: tuple[int, int, int]
    first: int
    #: Of two points: of the byte before each, and of its red, green and blue.
    weights: Floats
    floor: np.float32

    def plane(self, picture: Picture) -> Plane:
        points = np.ndarray(self.shape, np.uint32, picture, self.first, self.strides).copy()
        rows = points.view(np.uint8).astype(np.uint16)
        sums = np.add(rows[0], rows[1]).astype(np.float32)
        grey: Floats = sums.reshape(-1, len(self.weights)).dot(self.weights)
        if self.floor:
            grey -= self.floor
        _, height, points_of_row = self.shape
        return Plane(grey, height, points_of_row // 2)


@lru_cache(maxsize=64)
def _byte_points(reduction: Reduction, shape: tuple[int, ...]) -> _BytePoints | None:
    """None: a picture of bytes of this shape takes the general path."""
    if reduction.layout != "HWC" or shape[2] != 3 or not reduction.covers_bytes or min(shape[:2]) <= reduction.side:
        return None
    height, width, _ = shape
    rows, columns = _step(height, reduction.side), _step(width, reduction.side)
    down, across = -(-(height - rows // 2) // rows) // 2, -(-(width - columns // 2) // columns) // 2
    strides = (3 * rows * width, 6 * rows * width, 3 * columns)
    # A point is read with the byte before it: the byte behind the last point may not exist.
    first = 3 * (rows // 2 * width + columns // 2) - 1
    if first < 0:
        return None
    weights = np.asarray((0, _RED, _GREEN, _BLUE) * 2, np.float32) / np.float32(4 * reduction.data_range)
    floor = np.float32(reduction.floor / reduction.data_range)
    return _BytePoints((2, down, 2 * across), strides, first, weights, floor)
