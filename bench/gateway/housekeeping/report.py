"""The table of a run: per phase how late the loop was, how much of it was its own work, and what the machine did."""

from itertools import pairwise
from typing import Any

from bench.worker.stalls import Stalls

_LIMIT_NS = 2_000_000
#: So many callers' requests in one stall are a burst: after a pause of the machine, callers send what was due.
_BURST = 3


def report(
    models: int,
    workers: int,
    figures: list[dict[str, Any]],
    callers: list[dict[str, Any]],
    machine: Stalls,
    load: float,
) -> tuple[str, dict[str, Any]]:
    """The text, and everything as one document."""
    lines = [
        f"{models} models on each of {workers} workers; load average {load:.2f}; the machine's probe"
        f" {'at real-time priority' if machine.realtime else 'at normal priority'}",
        "",
        "| phase | CPU, loop's thread | late p99.9 | late worst | own p99.9 | own worst | own > 2 ms (no burst: worst)"
        " | collections worst (full ones) | machine > 2 ms (worst) | answers p50 / p99 / worst | failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    by_name = {each["name"]: each for each in callers}
    rows = []
    for held in figures:
        row = _row(held, machine) | {"callers": by_name.get(held["name"], {})}
        rows.append(row)
        lines.append(_line(row))
    lines += ["", *_histogram(figures)]
    document = {"models": models, "workers": workers, "rows": rows, "figures": figures, "callers": callers}
    return "\n".join(lines), document


def _row(held: dict[str, Any], machine: Stalls) -> dict[str, Any]:
    seconds = (held["ended"] - held["started"]) / 1e9
    stalls = held["stalls"]
    own = [each["own"] for each in stalls]
    apart = [each["own"] for each in stalls if each["requests"] < _BURST]
    around = machine.between(held["started"], held["ended"])
    return {
        "phase": held["name"],
        "seconds": seconds,
        "cpu": held["loop_ns"] / 1e9 / seconds,
        "process_cpu": held["process_ns"] / 1e9 / seconds,
        "late_p999": _quantile(held["late_counts"], 0.999),
        "late_worst": max((each["late"] for each in stalls), default=0) / 1e6,
        "own_p999": _quantile(held["own_counts"], 0.999),
        "own_worst": max(own, default=0) / 1e6,
        "own_over": sum(each > _LIMIT_NS for each in own),
        "apart_over": sum(each > _LIMIT_NS for each in apart),
        "apart_worst": max(apart, default=0) / 1e6,
        "collection_worst": max((took for _, took in held["collections"]), default=0) / 1e6,
        "full_collections": sum(generation == 2 for generation, _ in held["collections"]),
        "machine_over": sum(each > _LIMIT_NS for each in around),
        "machine_worst": max(around, default=0) / 1e6,
    }


def _histogram(figures: list[dict[str, Any]]) -> list[str]:
    """Per phase: firings of the timer by how late they were, and by the loop's own work meanwhile."""
    bounds = (0, 5, 10, 15, 20, 30, 50, 1 << 30)
    names = [f"≤ {bound / 10:g} ms" for bound in bounds[1:-1]] + [f"> {bounds[-2] / 10:g} ms"]
    lines = [f"| phase: late / own | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for held in figures:
        for kind in ("late", "own"):
            counts = {int(step): count for step, count in held[f"{kind}_counts"].items()}
            cells = [
                sum(count for step, count in counts.items() if low <= step < high) for low, high in pairwise(bounds)
            ]
            lines.append(f"| {held['name']}: {kind} | {' | '.join(map(str, cells))} |")
    return lines


def _quantile(counts: dict[str, int], share: float) -> float:
    """ms, rounded up to 0.1."""
    left = share * sum(counts.values())
    for step in sorted(map(int, counts)):
        left -= counts[str(step)]
        if left <= 0:
            return (step + 1) / 10
    return 0.0


def _line(row: dict[str, Any]) -> str:
    callers = row["callers"]
    answers = "–"
    if callers.get("requests"):
        answers = " / ".join(f"{callers[key] * 1e3:.1f}" for key in ("p50", "p99", "worst")) + " ms"
    failed = sum(callers.get("failed", {}).values())
    return (
        f"| {row['phase']} | {row['cpu']:.1%} | {row['late_p999']:.1f} ms | {row['late_worst']:.1f} ms"
        f" | {row['own_p999']:.1f} ms | {row['own_worst']:.1f} ms"
        f" | {row['own_over']} ({row['apart_over']}: {row['apart_worst']:.1f} ms)"
        f" | {row['collection_worst']:.1f} ms ({row['full_collections']})"
        f" | {row['machine_over']} ({row['machine_worst']:.1f} ms) | {answers} | {failed} |"
    )
