"""What the agents of all processes did in one phase. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PhaseReport:
    name: str
    #: Ticks by the clock; each began or was skipped.
    due: int
    remote: int
    local: int
    #: Actions without an answer: the last one again, or the fallback.
    unanswered: int
    overrun: int
    skipped: int
    #: Ticks that began and did not act.
    without_action: int
    requests: int
    late_answers: int
    #: Seconds from the phase's beginning until an agent used a remote answer: median, longest; agents that never did.
    remote_median: float | None
    remote_longest: float | None
    remote_never: int
    cpu_seconds: float

    @property
    def misses(self) -> int:
        return self.unanswered + self.overrun + self.skipped

    def row(self) -> str:
        shares = (self.remote, self.local, self.unanswered, self.overrun, self.skipped, self.misses)
        again = "–" if self.remote_median is None else f"{self.remote_median * 1000:,.0f} ({self.remote_longest:.1f} s)"
        return (
            f"| {self.name} | {self.due:,} | "
            + " | ".join(f"{share / self.due:.1%}" for share in shares)
            + f" | {self.without_action} | {self.requests:,} | {again} | {self.remote_never} |"
        )


HEADER = (
    "| link | ticks | remote | local | unanswered | overrun | skipped | deadline misses | without action | requests "
    "| ms to first remote (longest) | agents without remote |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def phase_report(name: str, processes: Sequence[Mapping[str, Any]]) -> PhaseReport:
    """Of one phase, as each process of agents counted it."""
    counts: Counter[str] = Counter()
    for each in processes:
        counts.update(each["counts"])
    firsts = [at for each in processes for at in each["first_remote_seconds"]]
    used = [at for at in firsts if at is not None]
    return PhaseReport(
        name=name,
        due=sum(each["due"] for each in processes),
        remote=counts["sources.remote"],
        local=counts["sources.local"],
        unanswered=counts["misses.unanswered"],
        overrun=counts["misses.overrun"],
        skipped=counts["misses.skipped"],
        without_action=sum(each["without_action"] for each in processes),
        requests=counts["requests"],
        late_answers=counts["late_answers"],
        remote_median=statistics.median(used) if used else None,
        remote_longest=max(used, default=None),
        remote_never=len(firsts) - len(used),
        cpu_seconds=sum(each["cpu_seconds"] for each in processes),
    )
