"""Report of the antagonists' run: percentiles and failures by phase, ratios, targets. Must never run anything."""

import json
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.gateway.reasons import reasons
from bench.gateway.troubles import HEALTHY, PHASES, Troubles
from bench.worker.comparison import Spread, Target
from bench.worker.generator import Outcome
from bench.worker.machine import describe

#: All phases with a worker in trouble, taken together.
TROUBLED = "troubled"
COLUMNS = (*PHASES, TROUBLED)


@dataclass(frozen=True)
class PhaseFigure:
    """One contender in one phase of one round. Latencies in ms from the instant due; a failure has none."""

    requests: int
    failed: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    within_deadline: float
    #: Reason of failures → count.
    reasons: dict[str, int]
    proxy_share: float
    generator_late_p99_ms: float
    generator_cpu_share: float


@dataclass
class Run:
    """The results of a run: contender → one dictionary of phases per round."""

    settings: dict[str, object]
    rounds: dict[str, list[dict[str, PhaseFigure]]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, contender: str, found: Mapping[str, PhaseFigure]) -> None:
        self.rounds.setdefault(contender, []).append(dict(found))

    def spread(self, contender: str, phase: str, name: str) -> Spread | None:
        values = [float(getattr(one[phase], name)) for one in self.rounds.get(contender, [])]
        return Spread.of(values) if values else None

    def ratio(self, ours: str, theirs: str, phase: str) -> Spread | None:
        """p99 over p99, round by round."""
        pairs = zip(self.rounds.get(ours, []), self.rounds.get(theirs, []), strict=False)
        values = [mine[phase].p99_ms / other[phase].p99_ms for mine, other in pairs]
        return Spread.of(values) if values else None


def figures(outcome: Outcome, troubles: Troubles, deadline_ms: float, proxy_share: float) -> dict[str, PhaseFigure]:
    """Sort the requests of one period of load by the phase in which they were due."""
    phases = np.array([troubles.phase_at(due) for due in outcome.scheduled])
    chosen = {phase: phases == phase for phase in PHASES}
    chosen[TROUBLED] = phases != HEALTHY
    scheduled, sent = np.array(outcome.scheduled), np.array(outcome.sent)
    status = np.array(outcome.status)
    latency = (np.array(outcome.answered) - scheduled) / 1e6
    late = (sent - scheduled) / 1e6
    found = {}
    for phase, mask in chosen.items():
        succeeded = mask & (status == 200)
        values = latency[succeeded] if succeeded.any() else np.array([float("inf")])
        failures = [int(number) for number in np.flatnonzero(mask & (status != 200))]
        found[phase] = PhaseFigure(
            requests=int(mask.sum()),
            failed=len(failures),
            p50_ms=float(np.percentile(values, 50)),
            p99_ms=float(np.percentile(values, 99)),
            p999_ms=float(np.percentile(values, 99.9)),
            within_deadline=float((values <= deadline_ms).sum() / max(1, mask.sum())),
            reasons=reasons(outcome, failures),
            proxy_share=proxy_share,
            generator_late_p99_ms=float(np.percentile(late[mask], 99)) if mask.any() else 0.0,
            generator_cpu_share=outcome.cpu_share,
        )
    return found


def _ratio(value: Spread | None) -> str:
    return f"{value.median:.2f}× ({value.low:.2f}–{value.high:.2f})" if value else "not measured in this run"


def targets(run: Run) -> list[Target]:
    """The gateway's targets, and the figures of this run."""
    found = []
    for other, limit, words in (
        ("round_robin", 0.5, "at most half of round robin's"),
        ("envoy", 1.0, "not above Envoy's"),
    ):
        value = run.ratio("prequal", other, TROUBLED)
        met = value.median <= limit if value else None
        # Phase by phase for the reader; the promise is about the worker's whole bad day.
        by_phase = [(phase, run.ratio("prequal", other, phase)) for phase in PHASES[1:]]
        parts = ", ".join(f"{phase} {one.median:.2f}×" for phase, one in by_phase if one)
        measured = f"{_ratio(value)}; {parts}" if value else _ratio(None)
        found.append(Target(f"one worker in trouble: prequal's p99 {words}", measured, met))
    value = run.ratio("prequal", "round_robin", HEALTHY)
    met = value.median <= 1.05 if value else None
    found.append(Target("four equal workers: prequal's p99 at most 5 % above round robin's", _ratio(value), met))
    failed = [sum(one[phase].failed for phase in PHASES) for one in run.rounds.get("prequal", [])]
    sent = sum(one[phase].requests for one in run.rounds.get("prequal", []) for phase in PHASES)
    measured = f"{sum(failed)} of {sent}" if failed else "not measured"
    found.append(Target("prequal: no failed request in any phase", measured, not sum(failed) if failed else None))
    return found


def print_report(run: Run) -> None:
    """One line per contender, a pair of columns per phase."""
    print("\np50 / p99 in ms, median over rounds (p99 lowest–highest), and failed requests of all rounds")
    print(f"{'':18}" + "".join(f"{phase:>32}" for phase in COLUMNS))
    for contender in run.rounds:
        columns = []
        for phase in COLUMNS:
            p50, p99 = run.spread(contender, phase, "p50_ms"), run.spread(contender, phase, "p99_ms")
            failed = sum(one[phase].failed for one in run.rounds[contender])
            if p50 and p99:
                text = f"{p50.median:.1f} / {p99.median:.0f} ({p99.low:.0f}–{p99.high:.0f})"
                columns.append(f"{text:>25} {failed:>6}")
        print(f"{contender:18}" + "".join(columns))
    for contender, rounds in run.rounds.items():
        reasons = Counter[str]()
        for one in rounds:
            for phase in PHASES:
                reasons.update(one[phase].reasons)
        for reason, count in reasons.most_common(5):
            print(f"{contender}: {count} × {reason}")
    samples = [one[HEALTHY] for rounds in run.rounds.values() for one in rounds]
    if samples:
        late = max(one.generator_late_p99_ms for one in samples)
        share = statistics.median(one.generator_cpu_share for one in samples)
        print(f"\ngenerator: {share:.0%} of a core; 99 % of requests sent within {late:.2f} ms of when they were due")
    for contender, why in run.unavailable.items():
        print(f"{contender} did not take part: {why.splitlines()[0]}")
    print("\nTargets")
    for target in targets(run):
        verdict = {True: "MET   ", False: "MISSED", None: "  --  "}[target.met]
        print(f"  {verdict}  {target.claim}: {target.measured}")


def write_json(run: Run, path: Path) -> None:
    """Every figure of every round, and the machine."""
    document = {
        "machine": describe(),
        "settings": run.settings,
        "unavailable": run.unavailable,
        "run_seconds": run.seconds,
        "targets": [asdict(target) for target in targets(run)],
        "rounds": {
            contender: [{phase: asdict(one) for phase, one in found.items()} for found in rounds]
            for contender, rounds in run.rounds.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))
