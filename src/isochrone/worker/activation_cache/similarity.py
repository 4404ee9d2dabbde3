"""Similarity of pictures: the structural similarity (SSIM) of two reduced luminance planes. Pure, in numpy.

The definition is that of ``skimage.metrics.structural_similarity`` with its defaults: windows of 7×7 with equal
weights, the sample covariance, K1 = 0.01, K2 = 0.03, and the mean over all windows that lie inside the plane (Wang et
al., 2004). A comparison differs from it by less than 0.0005, since planes are float32.

``Reduction`` reads a grid of points of a picture, not all of its pixels. Nothing between the points is seen. Sums run
over flat arrays, across the ends of rows, and what is wrong there is cut off last: the window sums take less than half
of the time of products with band matrices.
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
#: The side of a window. A plane must be as large.
WINDOW: Final = 7
#: Windows of a block of the local check, in each direction.
_BLOCK: Final = 4

Picture = np.ndarray[Any, np.dtype[Any]]
_Floats = npt.NDArray[np.float32]

_PIXELS: Final = WINDOW * WINDOW
_PIXEL_SHARE: Final = np.float32(1 / _PIXELS)
#: From the variance of a window to that of the sample, as scikit-image has it.
_SAMPLE: Final = _PIXELS / (_PIXELS - 1)
#: The constants of the definition for values from 0 to 1; the second for variances that are not those of a sample.
_C1: Final = np.float32(0.01**2)
_C2: Final = np.float32(0.03**2 / _SAMPLE)
#: ITU-R BT.601.
_RED, _GREEN, _BLUE = np.float32(0.299), np.float32(0.587), np.float32(0.114)


class Similarity(NamedTuple):
    """How alike two planes are; 1: equal."""

    #: SSIM: the mean over all windows.
    mean: float
    #: The mean over the windows of that block which differs most.
    least_block: float


class Plane(NamedTuple):
    """A reduced luminance plane, values from 0 to 1, flat."""

    pixels: _Floats
    height: int
    width: int


class KeyPlane(NamedTuple):
    """A plane with the statistics of its windows, since it is compared many times."""

    plane: Plane
    mean: _Floats
    #: mean² + C1, and the variance + C2.
    luminance: _Floats
    contrast: _Floats

    @property
    def nbytes(self) -> int:
        return self.plane.pixels.nbytes + self.mean.nbytes + self.luminance.nbytes + self.contrast.nbytes


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

    def _grey(self, picture: Picture) -> _Floats:
        height, width = picture.shape[-2:] if self.layout != "HWC" else picture.shape[:2]
        rows, columns = _step(height, self.side), _step(width, self.side)
        down, across = slice(rows // 2, None, rows), slice(columns // 2, None, columns)
        if self.layout == "HW":
            grey: _Floats = picture[down, across].astype(np.float32)
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


def key_plane(plane: Plane) -> KeyPlane:
    pixels, height, width = plane
    size, windows = height * width, _windows(height, width)
    terms = np.empty(2 * size, np.float32)
    np.multiply(pixels, _PIXEL_SHARE, out=terms[:size])
    np.multiply(pixels, terms[:size], out=terms[size:])
    sums = _window_sums(terms, width)
    mean = sums[:windows].copy()
    square = mean * mean
    return KeyPlane(plane, mean, square + _C1, sums[size : size + windows] - square + _C2)


def compare(key: KeyPlane, plane: Plane) -> Similarity:
    """The similarity of a plane to that of a key frame, which has the same size."""
    pixels, height, width = plane
    size, windows = height * width, _windows(height, width)
    terms = np.empty(3 * size, np.float32)
    share = terms[:size]
    np.multiply(pixels, _PIXEL_SHARE, out=share)
    np.multiply(pixels, share, out=terms[size : 2 * size])
    np.multiply(key.plane.pixels, share, out=terms[2 * size :])
    sums = _window_sums(terms, width)
    mean, squares, products = sums[:windows], sums[size : size + windows], sums[2 * size :]
    # (2·mx·my + C1)(2·cov + C2) / ((mx² + my² + C1)(vx + vy + C2)), with both twos taken out as a factor of four.
    numerator = key.mean * mean
    products -= numerator
    products += _C2 / 2
    numerator += _C1 / 2
    numerator *= products
    mean *= mean
    squares -= mean
    squares += key.contrast
    mean += key.luminance
    mean *= squares
    numerator /= mean
    # Without the windows across the ends of rows.
    shape = (height - WINDOW + 1, width - WINDOW + 1)
    quarters = np.ndarray(shape, np.float32, numerator, 0, (4 * width, 4))
    blocks = _block_shares(shape[0]) @ quarters @ _block_shares(shape[1]).T
    return Similarity(4 * float(quarters.sum()) / quarters.size, 4 * float(blocks.min()))


def _step(length: int, side: int) -> int:
    """Pixels from one point to the next: two points for each pixel of the plane, whose mean halves the noise."""
    return 1 if length <= side else -(-length // (2 * side))


def _luminance(channels: Picture) -> _Floats:
    grey: _Floats = channels[0].astype(np.float32)
    grey *= _RED
    for channel, weight in ((channels[1], _GREEN), (channels[2], _BLUE)):
        other = channel.astype(np.float32)
        other *= weight
        grey += other
    return grey


def _windows(height: int, width: int) -> int:
    """The length of a flat array from the first window to the last."""
    return (height - WINDOW + 1) * width - WINDOW + 1


def _window_sums(values: _Floats, width: int) -> _Floats:
    """The sum of the 7×7 values from each position on."""
    return _sums_of_seven(_sums_of_seven(values, 1), width)


def _sums_of_seven(values: _Floats, stride: int) -> _Floats:
    twos = values[:-stride] + values[stride:]
    fours = twos[: -2 * stride] + twos[2 * stride :]
    length = len(values) - 6 * stride
    sums: _Floats = fours[:length] + twos[4 * stride : 4 * stride + length]
    sums += values[6 * stride :]
    return sums


@lru_cache(maxsize=256)
def _block_shares(windows: int) -> _Floats:
    """A matrix that takes the mean over each block of windows, of one axis. The blocks cover all windows."""
    count = max(1, round(windows / _BLOCK))
    edges = [round(index * windows / count) for index in range(count + 1)]
    shares = np.zeros((count, windows), np.float32)
    for index in range(count):
        shares[index, edges[index] : edges[index + 1]] = 1 / (edges[index + 1] - edges[index])
    return shares
