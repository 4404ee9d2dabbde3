"""The work of each request, in units of the mean request: every distribution has mean 1."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, log, pi, sqrt
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

Draw = Callable[[int], "Floats"]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """All requests cost the same."""

    def draw(self, random: np.random.Generator) -> Draw:
        return lambda count: np.ones(count)


class Exponential(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exponential"):
    def draw(self, random: np.random.Generator) -> Draw:
        return lambda count: random.exponential(1.0, count)


class Lognormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"):
    """Standard deviation ``cv`` times the mean."""

    cv: Positive = 1.0

    def draw(self, random: np.random.Generator) -> Draw:
        variance = log(1 + self.cv * self.cv)
        return lambda count: random.lognormal(-variance / 2, sqrt(variance), count)


class Normal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="normal"):
    """Normal, truncated at 0. ``cv`` is sigma over mu before truncation, 1 in Prequal's testbed.

    Truncation raises the mean (by 29 % at cv 1), so draws are divided by the mean of the truncated distribution.
    """

    cv: Positive = 1.0

    def draw(self, random: np.random.Generator) -> Draw:
        bound = 1 / self.cv
        above = (1 + erf(bound / sqrt(2))) / 2
        mean = 1 + self.cv * exp(-bound * bound / 2) / sqrt(2 * pi) / above

        def draw(count: int) -> Floats:
            values = random.normal(1.0, self.cv, count)
            while (below := values <= 0).any():
                values[below] = random.normal(1.0, self.cv, int(below.sum()))
            scaled: Floats = values / mean
            return scaled

        return draw


class Pareto(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pareto"):
    """Classical Pareto: a few requests account for most of the work. With shape 1.5 the variance is infinite."""

    shape: Annotated[float, msgspec.Meta(gt=1)] = 1.5

    def draw(self, random: np.random.Generator) -> Draw:
        smallest = (self.shape - 1) / self.shape
        return lambda count: (random.pareto(self.shape, count) + 1) * smallest


Cost = Constant | Exponential | Lognormal | Normal | Pareto
