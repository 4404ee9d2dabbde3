"""The work of each request, in units of the mean request: every distribution has mean 1."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, log, pi, sqrt
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from isochrone.settings.ranges import PositiveAmount, Range
from isochrone.settings.sections import Section

if TYPE_CHECKING:
    from isochrone.simulate.draws import Floats

Draw = Callable[[int], "Floats"]


class Constant(Section):
    """All requests cost the same."""

    kind: Literal["constant"] = "constant"

    def draw(self, random: np.random.Generator) -> Draw:
        return lambda count: np.ones(count)


class Exponential(Section):
    kind: Literal["exponential"] = "exponential"

    def draw(self, random: np.random.Generator) -> Draw:
        return lambda count: random.exponential(1.0, count)


class Lognormal(Section):
    """Standard deviation ``cv`` times the mean."""

    kind: Literal["lognormal"] = "lognormal"
    cv: PositiveAmount = 1.0

    def draw(self, random: np.random.Generator) -> Draw:
        variance = log(1 + self.cv * self.cv)
        return lambda count: random.lognormal(-variance / 2, sqrt(variance), count)


class Normal(Section):
    """Normal, truncated at 0. ``cv`` is sigma over mu before truncation, 1 in Prequal's testbed.

    Truncation raises the mean (by 29 % at cv 1), so draws are divided by the mean of the truncated distribution.
    """

    kind: Literal["normal"] = "normal"
    cv: PositiveAmount = 1.0

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


class Pareto(Section):
    """Classical Pareto: a few requests account for most of the work. With shape 1.5 the variance is infinite."""

    kind: Literal["pareto"] = "pareto"
    shape: Annotated[float, Range(above=1)] = 1.5

    def draw(self, random: np.random.Generator) -> Draw:
        smallest = (self.shape - 1) / self.shape
        return lambda count: (random.pareto(self.shape, count) + 1) * smallest


Cost = Annotated[Constant | Exponential | Lognormal | Normal | Pareto, Field(discriminator="kind")]
