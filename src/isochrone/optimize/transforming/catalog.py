"""The transformations by name. A new one is a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from isochrone.optimize.transforming import graphs, int8, precision, pruning, structured
from isochrone.optimize.transforming.facts import MachineFacts, ModelFacts
from isochrone.optimize.transforming.graphs import Batches

Apply = Callable[[Path, Path, Batches, MachineFacts], None]
Obstacle = Callable[[ModelFacts, MachineFacts], str]


class Kind(StrEnum):
    GRAPH = "graph"
    PRECISION = "precision"
    PRUNING = "pruning"


@dataclass(frozen=True, slots=True)
class Transformation:
    kind: Kind
    apply: Apply
    """From one file to another, with batches of the calibration data. It raises ValueError with the reason if it would
    change nothing."""
    obstacle: Obstacle
    """Why it does not apply to a model on a machine; "": it does."""
    calibrates: bool = False


TRANSFORMATIONS = {
    "slim": Transformation(Kind.GRAPH, graphs.slim, graphs.slim_obstacle),
    "fuse": Transformation(Kind.GRAPH, graphs.fuse, graphs.fuse_obstacle),
    "fp16": Transformation(Kind.PRECISION, precision.fp16, precision.fp16_obstacle),
    "int8-dynamic": Transformation(Kind.PRECISION, int8.dynamic, int8.dynamic_obstacle),
    "int8-minmax": Transformation(Kind.PRECISION, int8.static_minmax, int8.static_obstacle, calibrates=True),
    "int8-entropy": Transformation(Kind.PRECISION, int8.static_entropy, int8.static_obstacle, calibrates=True),
    "int8-percentile": Transformation(Kind.PRECISION, int8.static_percentile, int8.static_obstacle, calibrates=True),
    "int8-weights": Transformation(Kind.PRECISION, precision.int8_weights, precision.few_bits_obstacle),
    "int4-weights": Transformation(Kind.PRECISION, precision.int4_weights, precision.few_bits_obstacle),
    "structured-10%": Transformation(Kind.PRUNING, structured.structured_10, structured.structured_obstacle),
    "structured-25%": Transformation(Kind.PRUNING, structured.structured_25, structured.structured_obstacle),
    "structured-50%": Transformation(Kind.PRUNING, structured.structured_50, structured.structured_obstacle),
    "magnitude-50%": Transformation(Kind.PRUNING, pruning.magnitude, pruning.magnitude_obstacle),
}
#: Of growing strength.
PRUNING_SERIES = (("structured-10%", "structured-25%", "structured-50%"), ("magnitude-50%",))


def applicable(model: ModelFacts, machine: MachineFacts) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of transformations to try, and of the others with the reason."""
    obstacles = {name: each.obstacle(model, machine) for name, each in TRANSFORMATIONS.items()}
    return (
        tuple(name for name, reason in obstacles.items() if not reason),
        {name: reason for name, reason in obstacles.items() if reason},
    )
