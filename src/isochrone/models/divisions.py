"""The file ``divisions.json`` of a divided model: its divisions with measured figures, and the link between the tiers.

``isochrone partition`` writes it, the worker of the edge reads it. Reading is strict: a figure that is missing or
misspelled is an error, since a plan with a wrong figure would choose wrong divisions without a word.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from isochrone.errors import ConfigError

DIVISIONS_FILE: Final = "divisions.json"
EDGE: Final = "edge"
CORE: Final = "core"
SPLIT: Final = "split"

#: Standard deviations of the jitter that a late exchange is assumed to take longer. Were the times of a link normally
#: distributed, 99 % would be below; they have longer tails, and the median deviation ignores those.
_LATE_SIGMAS = 2.33
_CUT = re.compile(r"cut-[0-9]+(-[a-z0-9]+)*", re.ASCII)
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Link:
    """``round_trip`` and ``jitter`` in seconds: the median without a payload, and the spread around it (1 σ).

    Bytes do not cross at one rate: a few go out at once, many wait for TCP's window. ``points`` are sizes, ascending,
    with the median seconds of their exchanges, which never fall; without them, all bytes cross at one rate.
    """

    round_trip: float
    bytes_per_second: float
    jitter: float = 0.0
    points: tuple[tuple[int, float], ...] = ()

    def seconds(self, sent_bytes: int, received_bytes: int) -> float:
        """The median of an exchange. Between two points on the line between them; above all, by the bandwidth."""
        back = received_bytes / self.bytes_per_second
        known = ((0, self.round_trip), *self.points)
        place = bisect_right(known, sent_bytes, key=lambda point: point[0])
        below, low = known[place - 1]
        if place == len(known):
            return low + (sent_bytes - below) / self.bytes_per_second + back
        above, high = known[place]
        return low + (high - low) * (sent_bytes - below) / (above - below) + back

    def payload_seconds(self, size: int) -> float:
        """By which a request of this size takes longer than the round trip."""
        return self.seconds(size, 0) - self.round_trip

    def scaled(self, round_trip: float, speed: float, jitter: float) -> Link:
        """The same curve with another round trip, where payloads cross so many times as fast."""
        points = tuple((size, round_trip + (seconds - self.round_trip) / speed) for size, seconds in self.points)
        return Link(round_trip, self.bytes_per_second * speed, jitter, points)

    def late_seconds(self, sent_bytes: int, received_bytes: int) -> float:
        """The median and a margin for the jitter: an allowance, not a percentile."""
        return self.seconds(sent_bytes, received_bytes) + _LATE_SIGMAS * self.jitter


class Division(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run the model for one row, as measured by the planner."""

    #: "edge", "core", or a cut such as "cut-12".
    name: str
    #: The model of the edge's repository that runs it.
    model: str
    #: Compute times of both stages; that of the core has its part of the compression.
    edge_ns: int
    core_ns: int
    #: Over the link; both 0 where nothing crosses.
    sent_bytes: int
    received_bytes: int
    #: Of its files on the edge, without those that it shares with a division before it.
    memory_bytes: int
    #: In which the edge compresses what it sends, and decompresses the answer.
    coding_ns: int = 0

    @property
    def uses_link(self) -> bool:
        return self.name != EDGE

    @property
    def is_cut(self) -> bool:
        return self.name not in (EDGE, CORE)


class Divisions(msgspec.Struct, frozen=True):
    """The plan of one divided model."""

    #: The division that serves until the worker knows better.
    present: str
    #: As the planner measured it.
    link: Link
    divisions: tuple[Division, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.divisions)


class _Link(msgspec.Struct, forbid_unknown_fields=True):
    round_trip_ns: int
    #: None: too fast to be measured.
    bytes_per_second: float | None
    jitter_ns: int
    #: (bytes, ns), ascending.
    points: list[tuple[int, int]] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    present: str
    link: _Link
    divisions: list[Division]


def write_divisions(plan: Divisions) -> bytes:
    link = plan.link
    rate = link.bytes_per_second if math.isfinite(link.bytes_per_second) else None
    file = _File(
        _FORMAT,
        plan.present,
        _Link(
            round(link.round_trip * 1e9),
            rate,
            round(link.jitter * 1e9),
            [(size, round(seconds * 1e9)) for size, seconds in link.points],
        ),
        list(plan.divisions),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def read_divisions(content: bytes, where: str) -> Divisions:
    """Raises ``ConfigError``, which names the key."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(where, "content", "divisions as isochrone partition writes them", str(error)) from None
    if file.format != _FORMAT:
        raise ConfigError(where, "format", str(_FORMAT), str(file.format))
    _check_divisions(file.divisions, where)
    names = [each.name for each in file.divisions]
    if file.present not in names:
        raise ConfigError(where, "present", f"one of {', '.join(names)}", f"'{file.present}'")
    given = file.link
    rate = math.inf if given.bytes_per_second is None else given.bytes_per_second
    for key, figure in (("round_trip_ns", given.round_trip_ns), ("jitter_ns", given.jitter_ns)):
        if figure < 0:
            raise ConfigError(where, f"link.{key}", "at least 0", str(figure))
    if rate <= 0:
        raise ConfigError(where, "link.bytes_per_second", "a number above 0, or null", str(rate))
    _check_points(given, where)
    points = tuple((size, nanoseconds / 1e9) for size, nanoseconds in given.points)
    link = Link(given.round_trip_ns / 1e9, rate, given.jitter_ns / 1e9, points)
    return Divisions(file.present, link, tuple(file.divisions))


def _check_points(link: _Link, where: str) -> None:
    size, time = 0, link.round_trip_ns
    for index, (next_size, next_time) in enumerate(link.points):
        if next_size <= size or next_time < time:
            expected = "more bytes than before, and no less time"
            raise ConfigError(where, f"link.points[{index}]", expected, f"{next_size} bytes in {next_time} ns")
        size, time = next_size, next_time


def _check_divisions(divisions: Sequence[Division], where: str) -> None:
    if not divisions:
        raise ConfigError(where, "divisions", "at least one", "none")
    names: set[str] = set()
    models: set[str] = set()
    for index, each in enumerate(divisions):
        key = f"divisions[{index}]"
        if each.name not in (EDGE, CORE) and not _CUT.fullmatch(each.name):
            raise ConfigError(where, f"{key}.name", "edge, core, or a cut such as cut-12", f"'{each.name}'")
        for field, value, seen in (("name", each.name, names), ("model", each.model, models)):
            if not value or value in seen:
                raise ConfigError(where, f"{key}.{field}", "one that no other division has", f"'{value}'")
            seen.add(value)
        for field in ("edge_ns", "core_ns", "sent_bytes", "received_bytes", "memory_bytes", "coding_ns"):
            if getattr(each, field) < 0:
                raise ConfigError(where, f"{key}.{field}", "at least 0", str(getattr(each, field)))
        if each.name == EDGE and (each.sent_bytes or each.received_bytes or each.core_ns or each.coding_ns):
            raise ConfigError(where, key, "no bytes and no core_ns: the division edge uses no link", "some")
