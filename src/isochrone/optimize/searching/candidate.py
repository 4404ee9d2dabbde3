"""A candidate: the changes to a model's graph and how a worker runs the result; and what a trial of it found."""

from __future__ import annotations

from dataclasses import dataclass, field

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a model's configuration says of its runs."""

    runtime: str = ONNXRUNTIME
    threads: int = 1
    bf16: bool = False
    """The runtime computes in bfloat16; the file stays as it is. Only OpenVINO offers it."""

    def __str__(self) -> str:
        precision = " bf16" if self.bf16 else ""
        return f"{self.runtime}{precision}, {self.threads} thread{'' if self.threads == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Candidate:
    transformations: tuple[str, ...] = ()
    """By name, in the order in which they are applied."""
    settings: RunSettings = field(default_factory=RunSettings)

    @property
    def graph(self) -> str:
        return " + ".join(self.transformations) or "float"

    def __str__(self) -> str:
        return f"{self.graph} ({self.settings})"


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured on this machine: times of one run in milliseconds, and differences from the float model's outputs."""

    milliseconds: float
    """The median; ``low`` and ``high`` bound it with 95 % confidence."""
    low: float
    high: float
    p99: float
    relative_error: float
    """‖difference‖ / ‖float output‖ (L2), of the worst output."""
    drop: float
    """What the limit on accuracy applies to, as a share: see ``trials.accuracy``."""
    size: int
    """Bytes of the model's file."""
    accuracy: float | None = None
    """Top-1, on the rows with labels; None without them."""
    speed_up: float | None = None
    """The float model's time, measured in turns with this one, as a multiple of this one's; None: it was not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial's result: figures, or the reason why there are none."""

    candidate: Candidate
    figures: Figures | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    milliseconds: float
    """For the median of one run."""
    drop: float
    """The largest that is accepted, as a share."""

    def accepts(self, figures: Figures) -> bool:
        return figures.drop <= self.drop

    def is_met(self, figures: Figures) -> bool:
        return self.accepts(figures) and figures.milliseconds <= self.milliseconds
