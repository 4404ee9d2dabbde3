"""What one update of ``isochrone top`` has: lines of models, workers and gateways with their figures. Pure records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.cli.top.figures import Figures, ModelFigures, Pair

MODELS, WORKERS, GATEWAYS = "models", "workers", "gateways"
#: In the order in which the screen has them.
KINDS = (MODELS, WORKERS, GATEWAYS)
#: One line of a kind.
SINGULAR = {MODELS: "model", WORKERS: "worker", GATEWAYS: "gateway"}

#: Severity of a line's state or of a notice; the screen has a color for each.
USUAL, CHANGING, WARNING, FAULT = range(4)


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures of all lines, by name: what ``--json`` prints."""

    models: dict[str, ModelFigures] = field(default_factory=dict)
    gateways: dict[str, Figures] = field(default_factory=dict)
    workers: dict[str, Figures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """One model, worker or gateway."""

    name: str
    #: By field of ``Figures`` or ``ModelFigures``; None: unknown.
    figures: Mapping[str, float | None]
    #: The version of a model, the pool of a worker, the epoch of a gateway; "": none.
    label: str = ""
    state: str = ""
    severity: int = USUAL
    #: (name, value): all that is known beside the figures.
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence on the whole fleet."""

    text: str
    severity: int = USUAL


@dataclass(frozen=True, slots=True)
class Sample:
    """One update."""

    #: Seconds since 1970.
    at: float
    title: str
    #: By kind, in the order of the source.
    lines: Mapping[str, tuple[Line, ...]]
    seen: Seen
    notices: tuple[Notice, ...] = ()
    #: By kind and name: the two readings of each process's page, for figures of parts.
    pairs: Mapping[str, Mapping[str, Pair]] = field(default_factory=dict)
