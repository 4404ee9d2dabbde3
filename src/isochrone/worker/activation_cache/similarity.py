"""Similarity of pictures: the structural similarity (SSIM) of two reduced luminance planes. Pure, in numpy.

The definition is that of ``skimage.metrics.structural_similarity`` with its defaults: windows of 7×7 with equal
weights, the sample covariance, K1 = 0.01, K2 = 0.03, and the mean over all windows that lie inside the plane (Wang et
al., 2004). A comparison differs from it by less than 0.0005, since planes are float32.

Planes are small: a call of numpy costs about as much as its arithmetic. So there are few calls, each over several maps
side by side, into buffers that are kept. Sums run over flat arrays, across the ends of rows, and what is wrong there is
cut off last.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from isochrone.worker.activation_cache.planes import WINDOW, Floats, Plane

#: Windows of a block of the local check, in each direction.
_BLOCK: Final = 4

_PIXELS: Final = WINDOW * WINDOW
#: An array: numpy converts a scalar in each call.
_PIXEL_SHARE: Final = np.array(1 / _PIXELS, np.float32)
#: From the variance of a window to that of the sample, as scikit-image has it.
_SAMPLE: Final = _PIXELS / (_PIXELS - 1)
#: The constants of the definition for values from 0 to 1; the second for variances that are not those of a sample.
_C1: Final = np.float32(0.01**2)
_C2: Final = np.float32(0.03**2 / _SAMPLE)
#: Planes have few sizes: that of each model with a cache, in each thread that compares.
_WORKSPACES: Final = 32


class Similarity(NamedTuple):
    """How alike two planes are; 1: equal."""

    #: SSIM: the mean over all windows.
    mean: float
    #: The mean over the windows of that block which differs most.
    least_block: float


class KeyPlane(NamedTuple):
    """A plane with the statistics of its windows, since it is compared many times."""

    plane: Plane
    mean: Floats
    #: What is added to the products of means, and to the covariance and the variance: (C1/2, mean² + C1) and
    #: (C2/2, variance + C2).
    addends: Floats

    @property
    def nbytes(self) -> int:
        return self.plane.pixels.nbytes + self.mean.nbytes + self.addends.nbytes


def key_plane(plane: Plane) -> KeyPlane:
    space = _workspace(plane.height, plane.width, threading.get_ident())
    space.sum_windows(plane.pixels, plane.pixels)
    mean = space.mean.copy()
    square = mean * mean
    addends = np.empty_like(space.terms)
    addends[0, 0], addends[0, 1] = _C1 / 2, square + _C1
    addends[1, 0], addends[1, 1] = _C2 / 2, space.products[1] - square + _C2
    return KeyPlane(plane, mean, addends)


def compare(key: KeyPlane, plane: Plane) -> Similarity:
    """The similarity of a plane to that of a key frame, which has the same size."""
    space = _workspace(plane.height, plane.width, threading.get_ident())
    space.sum_windows(key.plane.pixels, plane.pixels)
    # (2·mx·my + C1)(2·cov + C2) / ((mx² + my² + C1)(vx + vy + C2)), with both twos taken out as a factor of four.
    luminance, mean = space.luminance, space.mean
    np.multiply(key.mean, mean, space.upper)
    np.multiply(mean, mean, space.lower)
    np.subtract(space.products, luminance, space.contrast)
    np.add(space.terms, key.addends, space.terms)
    np.multiply(luminance, space.contrast, luminance)
    np.divide(space.upper, space.lower, space.upper)
    means = space.down.dot(space.inside).dot(space.across)
    # No mean over several blocks is below the least block.
    return Similarity(4 * means.item(-1), 4 * float(np.minimum.reduce(means, None)))


class _Workspace:
    """The buffers of comparisons of planes of one size: two, since they are seldom in the processor's caches."""

    def __init__(self, height: int, width: int) -> None:
        size, windows = height * width, (height - WINDOW + 1) * width - WINDOW + 1
        values, sums = np.zeros(3 * size, np.float32), np.zeros(max(3 * size, 4 * windows), np.float32)
        #: Of each pixel: its share in a mean, and the products with the other plane's pixel and with itself.
        self._share, self._product, self._square = values.reshape(3, size)
        # Sums over rows, then over columns, of all three. The first ones replace the values.
        self._of_rows = _sevens(values, len(values), 1)
        self._row_sums = sums[: self._of_rows.shape[1]]
        self._of_columns = _sevens(sums, len(self._row_sums), width)
        self._window_sums = values[: self._of_columns.shape[1]]
        self.mean = values[:windows]
        self.products = np.ndarray((2, windows), np.float32, values, 4 * size, (4 * size, 4))
        #: Luminance and contrast, of each the part of the numerator and that of the denominator.
        self.terms = sums[: 4 * windows].reshape(2, 2, windows)
        self.luminance, self.contrast = self.terms
        self.upper, self.lower = self.luminance
        # Without the windows across the ends of rows.
        shape = (height - WINDOW + 1, width - WINDOW + 1)
        self.inside = np.ndarray(shape, np.float32, self.upper, 0, (4 * width, 4))
        self.down, self.across = _shares(shape[0]), np.ascontiguousarray(_shares(shape[1]).T)

    def sum_windows(self, other: Floats, pixels: Floats) -> None:
        """Makes ``mean`` and ``products``: the means of the products with the other plane, and of the squares."""
        np.multiply(pixels, _PIXEL_SHARE, self._share)
        np.multiply(other, self._share, self._product)
        np.multiply(pixels, self._share, self._square)
        np.add.reduce(self._of_rows, 0, out=self._row_sums)
        np.add.reduce(self._of_columns, 0, out=self._window_sums)


@lru_cache(maxsize=_WORKSPACES)
def _workspace(height: int, width: int, thread: int) -> _Workspace:
    """Of one thread: numpy releases the interpreter's lock within a call."""
    return _Workspace(height, width)


def _sevens(values: Floats, count: int, stride: int) -> Floats:
    """Seven rows: the first so many values, and those from one, two … six strides on."""
    return np.ndarray((WINDOW, count - (WINDOW - 1) * stride), np.float32, values, 0, (4 * stride, 4))


def _shares(windows: int) -> Floats:
    """A matrix that takes the mean over each block of windows, of one axis, and in its last row over all. The blocks
    cover all windows."""
    count = max(1, round(windows / _BLOCK))
    edges = [round(index * windows / count) for index in range(count + 1)]
    shares = np.zeros((count + 1, windows), np.float32)
    for index in range(count):
        shares[index, edges[index] : edges[index + 1]] = 1 / (edges[index + 1] - edges[index])
    shares[count] = 1 / windows
    return shares
