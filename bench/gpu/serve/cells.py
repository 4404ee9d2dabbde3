"""The cells of ``bench.gpu.serve``: model, variant, transport, how many in flight; and the filter of ``--cells``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bench.gpu.load.regions import TRANSPORTS
from bench.gpu.models.specs import OVERLAP, TWO_TOWER, VARIANTS, variant_name


@dataclass(frozen=True)
class Cell:
    """One figure. ``in_flight`` 1: latency; more: requests per second at saturation."""

    model: str
    variant: str
    transport: str
    in_flight: int

    @property
    def name(self) -> str:
        return f"{self.model}/{self.variant}/{self.transport}/{self.in_flight}"

    @property
    def served_model(self) -> str:
        return variant_name(self.model, self.variant)

    @property
    def is_latency(self) -> bool:
        return self.in_flight == 1

    @property
    def is_promised(self) -> bool:
        """There is a promise for the variant that users get; none for the two towers at saturation."""
        return self.variant == OVERLAP and (self.is_latency or self.model != TWO_TOWER)


def plan(models: Sequence[str], saturation: int, transports: Sequence[str] = TRANSPORTS) -> list[Cell]:
    """All cells, model by model. Those that are compared with each other, the variants, follow each other."""
    return [
        Cell(model, variant, transport, in_flight)
        for model in models
        for transport in transports
        for in_flight in (1, saturation)
        for variant in VARIANTS
    ]


def by_model(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each model: those of one worker.

    A worker has one model with its variants, of three streams each: torch has 32 for each device in a process, so that
    three models with four variants would not fit.
    """
    return {model: [cell for cell in cells if cell.model == model] for model in dict.fromkeys(c.model for c in cells)}


def chosen(cells: Sequence[Cell], patterns: str) -> list[Cell]:
    """Those whose name one of the patterns matches: "resnet50/*/cuda_shm/*,encoder/overlap/*". Raises ValueError."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not wanted:
        return list(cells)
    for pattern in wanted:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise ValueError(f"--cells: {pattern} matches none of {cells[0].name}, …")
    return [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in wanted)]


def in_turn(cells: Sequence[Cell], rounds: int) -> Iterator[tuple[int, Cell]]:
    """Every cell once a round; every second round goes backwards, so that no cell always follows the same one."""
    for number in range(rounds):
        for cell in cells if number % 2 == 0 else reversed(cells):
            yield number, cell
