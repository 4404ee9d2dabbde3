"""Prints, writes and draws the deadline curve, the machine's stalls beside it. It computes no point."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.worker.deadline_points import Point, overlapping
from bench.worker.machine import describe
from bench.worker.stalls import Stalls


@dataclass
class Run:
    """One run of the curve. Capacities in answers per second, by server."""

    deadline_ms: float
    seconds: float
    capacity_kind: str
    points: list[Point] = field(default_factory=list)
    #: Closed loop at 32 in flight, without deadline: before the curve, and again after it.
    closed_capacity: dict[str, list[float]] = field(default_factory=dict)
    #: Highest Poisson rate of which 99 % were answered in time.
    open_capacity: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=Stalls)
    steal_seconds: float = 0.0
    generator_is_real_time: bool = False

    def capacity(self, server: str) -> float:
        """What 100 % means."""
        return self.open_capacity[server] if self.capacity_kind == "open" else self.closed_capacity[server][0]


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3%}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def print_report(run: Run) -> None:
    """Capacities, the curve, the machine's stalls, and the claims."""
    print(f"\nmlp_large, deadline {run.deadline_ms:g} ms, Poisson arrivals, {run.seconds:g} s a point")
    for server, version in run.versions.items():
        before, after = run.closed_capacity[server]
        print(
            f"{server} {version}: closed loop at 32 in flight {before:,.0f}/s (after the curve {after:,.0f}/s); "
            f"highest open-loop rate with 99 % in time {run.open_capacity[server]:,.0f}/s"
        )
    meaning = {"closed": "closed loop at 32 in flight", "open": "highest open-loop rate answered in time"}
    print(f"100 % of capacity is the server's own {meaning[run.capacity_kind]}")
    print("latencies in ms; they count from the scheduled instant; lateness is the generator's, stalls the machine's")
    heads = ("offered/s", "admitted", "dropped", "in time %", "from send %", "goodput %", "p50", "p99", "p99.9")
    tail = ("reject p50", "late p99/max", "stalls >1 ms", "missed in one")
    print(f"\n  {'':14}" + "".join(f"{head:>12}" for head in heads) + "".join(f"{head:>14}" for head in tail))
    for server in run.versions:
        print(f"  {server}")
        for point in (point for point in run.points if point.server == server):
            stalls = run.stalls.between(point.start_ns, point.end_ns)
            refusal = _milliseconds(point.refusal_p50_ms)
            longest = f"{len(stalls)} ({max(stalls) / 1e6:.1f} ms)" if stalls else "0"
            missed = f"{overlapping(point.late_intervals, run.stalls.events)}/{len(point.late_intervals)}"
            values = (
                *(f"{point.offered_rate:,.0f}", f"{point.admitted / point.offered:.1%}", f"{point.dropped}"),
                *(_share(point.in_time_of_admitted), _share(point.in_time_of_admitted_from_send)),
                f"{point.goodput_rate / run.capacity(server):.1%}",
                *map(_milliseconds, (point.p50_ms, point.p99_ms, point.p999_ms)),
            )
            lateness = f"{point.generator_late_p99_ms:.2f}/{point.generator_late_max_ms:.1f}"
            failed = f"  {point.failed} FAILED" if point.failed else ""
            failed += f"  {point.waited_for_connection} waited for a connection" if point.waited_for_connection else ""
            line = "".join(f"{value:>12}" for value in values)
            line += "".join(f"{value:>14}" for value in (refusal, lateness, longest, missed))
            print(f"    {point.percent_of_capacity:>5g} %     {line}{failed}")
    _print_stalls(run)
    busiest = max((point.generator_cpu_share for point in run.points), default=0.0)
    priority = "at real-time priority" if run.generator_is_real_time else "at ordinary priority"
    print(f"the generator (one thread, on the same machine, {priority}) used at most {busiest:.0%} of a core")
    print("\nTargets")
    for claim, measured, met in targets(run):
        print(f"  {'MET   ' if met else 'MISSED'}  {claim}: {measured}")


def _print_stalls(run: Run) -> None:
    kind = "at real-time priority: the machine's own" if run.stalls.realtime else "at ordinary priority: our load's too"
    lates = sorted(late for _, late in run.stalls.events)
    longest = f", longest {lates[-1] / 1e6:.1f} ms" if lates else ""
    print(
        f"\nstalls over 1 ms in the whole run: {len(lates)}{longest} (a probe that sleeps 500 µs at a time, {kind});"
        f" stolen by the hypervisor: {run.steal_seconds:.2f} CPU s"
    )


def targets(run: Run) -> list[tuple[str, str, bool]]:
    """What the worker promises under deadlines; only points that were measured."""
    found = []
    for point in run.points:
        if point.server != "isochrone":
            continue
        if point.percent_of_capacity == 90:
            share = point.in_time_of_admitted
            met = share is not None and share > 0.999
            found.append(("at 90 %: over 99.9 % of admitted in time", _share(share), met))
        if point.percent_of_capacity == 200:
            goodput = point.goodput_rate / run.capacity(point.server)
            found.append(("at 200 %: goodput at or above 85 % of capacity", f"{goodput:.1%}", goodput >= 0.85))
            refusal = point.refusal_p50_ms
            measured = "no rejections" if refusal is None else f"{refusal:.2f} ms"
            found.append(
                ("at 200 %: rejections under 2 ms at the median", measured, refusal is not None and refusal < 2.0)
            )
    return found


def write_json(run: Run, path: Path) -> None:
    """Everything but the single late requests."""
    document = asdict(run) | {"machine": describe(), "targets": targets(run)}
    for point in document["points"]:
        point["late"] = len(point["late_intervals"])
        point["late_during_stalls"] = overlapping(point.pop("late_intervals"), run.stalls.events)
        stalls = run.stalls.between(point["start_ns"], point["end_ns"])
        point["stalls_ms"] = [round(late / 1e6, 2) for late in stalls]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))


def _line(panel: Axes, points: list[tuple[float, float]], style: str, label: str) -> None:
    if points:
        panel.plot([x for x, _ in points], [y for _, y in points], style, label=label)


def draw(run: Run, path: Path) -> None:
    """Goodput, share in time and p99 by offered load, one line per server."""
    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for server in run.versions:
        points = sorted((p for p in run.points if p.server == server), key=lambda p: p.percent_of_capacity)
        loads = [point.percent_of_capacity for point in points]
        label = f"{server} {run.versions[server]}"
        goodput = [100 * point.goodput_rate / run.capacity(server) for point in points]
        panels[0].plot(loads, goodput, "o-", label=label)
        in_time = [(p.percent_of_capacity, 100 * p.in_time_of_admitted) for p in points if p.in_time_of_admitted]
        tails = [(p.percent_of_capacity, p.p99_ms) for p in points if p.p99_ms is not None]
        _line(panels[1], in_time, "o-", label)
        _line(panels[2], tails, "o-", f"{server}, answered")
        refused = [(p.percent_of_capacity, p.refusal_p50_ms) for p in points if p.refusal_p50_ms is not None]
        _line(panels[2], refused, "x--", f"{server}, rejections (median)")
    panels[0].set_title("goodput: answers in time, % of capacity")
    panels[1].set_title("answered in time, % of admitted")
    panels[2].set_title("p99 of answers and median of rejections, ms")
    panels[2].axhline(run.deadline_ms, color="grey", linestyle=":")
    panels[2].set_yscale("log")
    for panel in panels:
        panel.set_xlabel("offered load, % of the server's own capacity")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
