"""The choice of a cut for a link and a deadline. Pure.

Without prices the fastest option wins. With prices the cheapest wins, of those whose late time meets the deadline; if
none does, there is no choice, and the fastest is named as the closest. The late time is the compute time of both stages
(lower quartiles, as measured) and the link's time with a margin for its jitter: no percentile of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import Link


@dataclass(frozen=True, slots=True)
class Option:
    """One way to compute the model for one row."""

    #: "edge", "core", or the tensors that cross and their encoding; behind them the compression, if there is one.
    name: str
    edge_seconds: float
    core_seconds: float
    #: Over the link; both 0 where nothing crosses.
    sent_bytes: int
    received_bytes: int
    #: Relative error of the outputs that the encoding causes.
    error: float = 0.0
    #: The part of ``edge_seconds`` in which zstd runs.
    coding_seconds: float = 0.0

    @property
    def uses_link(self) -> bool:
        return bool(self.sent_bytes or self.received_bytes)

    def lower(self, other: Option) -> Option:
        """With the lower times of two measurements."""
        return replace(
            self,
            edge_seconds=min(self.edge_seconds, other.edge_seconds),
            core_seconds=min(self.core_seconds, other.core_seconds),
            coding_seconds=min(self.coding_seconds, other.coding_seconds),
        )

    def seconds(self, link: Link) -> float:
        crossing = link.seconds(self.sent_bytes, self.received_bytes) if self.uses_link else 0.0
        return self.edge_seconds + crossing + self.core_seconds

    def late_seconds(self, link: Link) -> float:
        crossing = link.late_seconds(self.sent_bytes, self.received_bytes) if self.uses_link else 0.0
        return self.edge_seconds + crossing + self.core_seconds


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a second on each tier and of a gigabyte over the link, in any one unit."""

    edge_second: float = 0.0
    core_second: float = 0.0
    gigabyte: float = 0.0

    @property
    def are_given(self) -> bool:
        return bool(self.edge_second or self.core_second or self.gigabyte)

    def of(self, option: Option) -> float:
        crossing = (option.sent_bytes + option.received_bytes) / 1e9
        return (
            option.edge_seconds * self.edge_second + option.core_seconds * self.core_second + crossing * self.gigabyte
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """``meets``: within the deadline. ``reason``: a sentence for people."""

    option: Option
    meets: bool
    reason: str


def choose(
    options: Sequence[Option],
    link: Link,
    deadline: float | None = None,
    prices: Prices | None = None,
    most_error: float = 0.0,
) -> Choice:
    """``deadline`` in seconds. Options with a larger error than ``most_error`` are left out."""
    allowed = [option for option in options if option.error <= most_error]
    if not allowed:
        raise InvalidArgument(f"every option changes the outputs by more than {most_error:.3%}")
    fastest = min(allowed, key=lambda option: (option.late_seconds(link), option.sent_bytes))
    meeting = [option for option in allowed if deadline is None or option.late_seconds(link) <= deadline]
    if not meeting:
        assert deadline is not None
        missed = fastest.late_seconds(link) - deadline
        return Choice(fastest, False, f"no option meets {_ms(deadline)}; the closest misses it by {_ms(missed)}")
    if prices is None or not prices.are_given:
        return Choice(fastest, True, f"the fastest of {len(allowed)}")
    cheapest = min(meeting, key=lambda option: (prices.of(option), option.late_seconds(link)))
    return Choice(cheapest, True, f"the cheapest of {len(meeting)} that meet the deadline")


def contenders(options: Sequence[Option], link: Link, factor: float, most: int) -> list[Option]:
    """The fastest ones, of those that take at most ``factor`` times as long as the fastest: none if it has no rival."""
    ordered = sorted(options, key=lambda option: option.late_seconds(link))
    near = [option for option in ordered if option.late_seconds(link) <= factor * ordered[0].late_seconds(link)]
    return near[:most] if len(near) > 1 else []


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
