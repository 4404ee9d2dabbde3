"""The cells of a hop run and the samples taken on them. Records only; nothing here runs anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.worker.load import Figure
from bench.worker.scenarios import IDENTITY_64, TRANSPORTS, Cell

DIRECT = "direct"
OURS = "isochrone"
#: One in flight: the added latency, reported for both placements. More: requests/s with the proxy on a core of its own.
POINTS = ((1, "together"), (1, "split"), (32, "split"), (256, "split"))


@dataclass(frozen=True)
class HopCell:
    """One block of the table."""

    cell: Cell
    placement: str

    @property
    def name(self) -> str:
        return f"{self.cell.transport} ×{self.cell.in_flight} {self.placement}"


@dataclass(frozen=True)
class Sample:
    """One contender on one cell in one round. CPU in seconds of the whole measured time; `direct` has no proxy."""

    contender: str
    cell: HopCell
    round_number: int
    figure: Figure | None
    proxy_cpu: float = 0.0
    upstream_cpu: float = 0.0
    client_cpu: float = 0.0
    #: Cores that other processes of the machine used meanwhile.
    others_share: float = 0.0
    problem: str = ""

    @property
    def seconds(self) -> float:
        return self.figure.requests / self.figure.requests_per_second if self.figure else 0.0


@dataclass
class Results:
    """The results of a run."""

    samples: list[Sample] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    verified: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0

    def by_round(self, contender: str, cell: HopCell) -> dict[int, Sample]:
        """The samples that have a figure."""
        return {
            sample.round_number: sample
            for sample in self.samples
            if sample.contender == contender and sample.cell == cell and sample.figure
        }


def hop_cells(transports: Sequence[str] = TRANSPORTS) -> list[HopCell]:
    """Every cell of the published run."""
    return [
        HopCell(Cell(IDENTITY_64, transport, in_flight), placement)
        for transport in transports
        for in_flight, placement in POINTS
    ]
