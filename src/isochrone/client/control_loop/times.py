"""What a loop reports of itself: the times of its stages, where its actions came from, and which deadlines it missed.

A tick misses its deadline for one of three reasons: it was skipped, no model had answered by its act instant
(unanswered), or its action was complete only after the deadline (overrun).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from isochrone.client.control_loop.durations import DurationCounts, Durations
from isochrone.client.control_loop.schedule import TickLimits
from isochrone.clock import SECOND

Source = Literal["remote", "local", "held", "fallback"]
SOURCES: tuple[Source, ...] = ("remote", "local", "held", "fallback")
STAGES = ("sense", "infer", "act")
#: Beside the stages: how late ticks start, from a tick's start to the end of its action, and round trips of requests.
TIMES = ("start", *STAGES, "tick", "round_trip")
REASONS = ("unanswered", "overrun", "skipped")
_PREFIX = "isochrone_control_loop"
#: Quantiles of durations are those of the last one to two of these.
WINDOW = 300 * SECOND


@dataclass(frozen=True, slots=True)
class LoopSummary:
    """A loop's figures since it was made; the quantiles in ``times`` are of its last 5 to 10 minutes."""

    #: Ticks that began. Each had one action.
    ticks: int
    #: Actions by source: remote, local, held (the last action again), fallback.
    sources: dict[str, int]
    #: Missed deadlines by reason: unanswered, overrun, skipped.
    misses: dict[str, int]
    #: Ticks of which this stage was the first to end after its limit.
    stage_overruns: dict[str, int]
    #: Requests, those that were probes, and answers that came after their tick had acted.
    requests: int
    probes: int
    late_answers: int
    #: Failed requests by the code of the error; "no_answer" within late_answer_ms.
    remote_failures: dict[str, int]
    last_remote_error: str
    #: How often the remote model came into doubt.
    doubts: int
    local_failures: int
    last_local_error: str
    #: Why ticks are planned as without a local model now: "failed", "too slow", or empty: they are not.
    local_unfit: str
    times: dict[str, Durations]

    @property
    def deadline_misses(self) -> int:
        return sum(self.misses.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "deadline_misses": self.deadline_misses}


class LoopTimes:
    """Counts while the loop runs."""

    def __init__(self) -> None:
        self.sources: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.stage_overruns: Counter[str] = Counter()
        self.requests = 0
        self.probes = 0
        self.late_answers = 0
        self.remote_failures: Counter[str] = Counter()
        self.last_remote_error = ""
        self.doubts = 0
        self.local_failures = 0
        self.last_local_error = ""
        self.local_unfit = ""
        self._durations = {name: DurationCounts() for name in TIMES}
        self._window_ends: int | None = None

    def skipped(self, ticks: int) -> None:
        self.misses["skipped"] += ticks

    def round_trip(self, nanoseconds: int) -> None:
        self._durations["round_trip"].add(nanoseconds)

    def remote_failed(self, code: str, text: str) -> None:
        self.remote_failures[code] += 1
        self.last_remote_error = text

    def local_failed(self, text: str) -> None:
        self.local_failures += 1
        self.last_local_error = text

    def tick(self, source: Source, limits: TickLimits, began: int, sensed: int, chosen: int, acted: int) -> None:
        """A tick that is over, by the instants at which it began and its stages ended."""
        self.sources[source] += 1
        self._turn_window(acted)
        durations = self._durations
        # Some event loops round timers to whole milliseconds, and wake a task early.
        durations["start"].add(max(0, began - limits.start))
        durations["sense"].add(sensed - began)
        durations["infer"].add(chosen - sensed)
        durations["act"].add(acted - chosen)
        durations["tick"].add(max(0, acted - limits.start))
        is_unanswered = source in ("held", "fallback")
        if sensed > limits.sense_ends:
            self.stage_overruns["sense"] += 1
        elif is_unanswered or chosen > limits.infer_ends:
            self.stage_overruns["infer"] += 1
        elif acted > limits.deadline:
            self.stage_overruns["act"] += 1
        if is_unanswered:
            self.misses["unanswered"] += 1
        elif acted > limits.deadline:
            self.misses["overrun"] += 1

    def _turn_window(self, now: int) -> None:
        if self._window_ends is None:
            self._window_ends = now + WINDOW
        elif now >= self._window_ends:
            self._window_ends = now + WINDOW
            for counts in self._durations.values():
                counts.turn()

    def summary(self) -> LoopSummary:
        return LoopSummary(
            ticks=self.sources.total(),
            sources={source: self.sources[source] for source in SOURCES},
            misses={reason: self.misses[reason] for reason in REASONS},
            stage_overruns={stage: self.stage_overruns[stage] for stage in STAGES},
            requests=self.requests,
            probes=self.probes,
            late_answers=self.late_answers,
            remote_failures=dict(self.remote_failures),
            last_remote_error=self.last_remote_error,
            doubts=self.doubts,
            local_failures=self.local_failures,
            last_local_error=self.last_local_error,
            local_unfit=self.local_unfit,
            times={name: counts.summary() for name, counts in self._durations.items()},
        )

    def prometheus(self, **labels: str) -> str:
        """The figures in the text format of Prometheus, each with these labels."""
        lines: list[str] = []

        def metric(name: str, kind: str, samples: list[tuple[str, dict[str, str], float]]) -> None:
            lines.append(f"# TYPE {_PREFIX}_{name} {kind}")
            for suffix, own, value in samples:
                lines.append(f"{_PREFIX}_{name}{suffix}{_labels({**labels, **own})} {value:.9g}")

        metric("ticks_total", "counter", [("", {"source": each}, self.sources[each]) for each in SOURCES])
        metric("deadline_misses_total", "counter", [("", {"reason": each}, self.misses[each]) for each in REASONS])
        metric("stage_overruns_total", "counter", [("", {"stage": each}, self.stage_overruns[each]) for each in STAGES])
        metric("requests_total", "counter", [("", {}, self.requests)])
        metric("probes_total", "counter", [("", {}, self.probes)])
        metric("late_answers_total", "counter", [("", {}, self.late_answers)])
        failures = sorted(self.remote_failures.items())
        metric("remote_failures_total", "counter", [("", {"code": code}, count) for code, count in failures])
        metric("doubts_total", "counter", [("", {}, self.doubts)])
        metric("local_failures_total", "counter", [("", {}, self.local_failures)])
        metric("local_unfit", "gauge", [("", {}, bool(self.local_unfit))])
        samples: list[tuple[str, dict[str, str], float]] = []
        for name, counts in self._durations.items():
            median, p99 = counts.quantiles(0.5, 0.99)
            samples += [
                ("", {"time": name, "quantile": "0.5"}, median / SECOND),
                ("", {"time": name, "quantile": "0.99"}, p99 / SECOND),
                ("_sum", {"time": name}, counts.total / SECOND),
                ("_count", {"time": name}, counts.count),
            ]
        metric("seconds", "summary", samples)
        return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, value in labels.items()
    }
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"
