"""Prints the alternating run's table and summary, and writes its JSON file. It computes no figure."""

import json
from dataclasses import asdict
from pathlib import Path

from bench.worker.alternating import Results
from bench.worker.comparison import OURS, Row, Spread, rows, targets
from bench.worker.machine import describe
from bench.worker.models import MLP_LARGE
from bench.worker.scenarios import Cell


def _rate(value: Spread) -> str:
    return f"{value.median:,.0f} ({value.low:,.0f}–{value.high:,.0f})"


def _ratio(value: Spread | None) -> str:
    return f"{value.median:.2f}× ({value.low:.2f}–{value.high:.2f})" if value else ""


def _latency(line: Row) -> str:
    if line.median_us:
        return f"{line.median_us.median:,.0f}"
    # h2load reports a mean only; it is marked, so that it is not taken for a median.
    return f"~{line.mean_us.median:,.0f}" if line.mean_us else ""


def print_table(results: Results, cells: list[Cell]) -> None:
    """One block per cell."""
    widths = f"{'':2}{{:12}}{{:>32}}{{:>24}}{{:>11}}{{:>10}}{{:>12}}"
    print("\nrequests/s: median over rounds (lowest–highest); ratio: ours over the server's, round by round")
    print("latency in µs, median; ~ marks a mean (h2load reports no median); CPU: the server's whole process tree")
    current = None
    for line in rows(results, cells):
        if line.cell != current:
            current = line.cell
            print(f"\n{current.scenario.name}, {current.transport}, {current.in_flight} in flight")
            print(widths.format("", "requests/s", "ours/server", "latency", "p99", "CPU µs/req"))
        p99 = f"{line.p99_us.median:,.0f}" if line.p99_us else ""
        note = f"  [{line.model}]" if line.server == "triton" and line.model != line.cell.scenario.model else ""
        note += f"  {len(line.problems)} failed rounds" if line.problems else ""
        cpu = f"{line.cpu_us_per_request.median:,.1f}"
        rate = _rate(line.requests_per_second)
        print(widths.format(line.server, rate, _ratio(line.ratio), _latency(line), p99, cpu) + note)
    failed = {(s.server, s.model, s.cell.name, s.problem.splitlines()[0]) for s in results.samples if s.problem}
    if failed:
        print("\nfailed measurements")
        for server, model, cell, problem in sorted(failed):
            print(f"  {server}, {model}, {cell}: {problem}")


def print_summary(results: Results) -> None:
    """The claims, met or missed."""
    print()
    for batch, values in sorted(results.bare.items()):
        print(f"bare onnxruntime, {MLP_LARGE.name}, batch {batch}, 1 thread: {_rate(Spread.of(values))} rows/s")
    for server, why in results.unavailable.items():
        print(f"{server} did not take part: {why.splitlines()[0]}")
    if "triton" in results.versions:
        print(
            "Triton's identity is measured plain and with dynamic batching; the better of the two counts, cell by cell"
        )
    print("\nTargets")
    for target in targets(results):
        verdict = {True: "MET   ", False: "MISSED", None: "  --  "}[target.met]
        print(f"  {verdict}  {target.claim}: {target.measured}")


def write_json(results: Results, cells: list[Cell], path: Path, settings: dict[str, object]) -> None:
    """Every sample, every derived row, and what machine it was."""
    document = {
        "machine": describe(),
        "settings": settings,
        "ours": OURS,
        "versions": results.versions,
        "unavailable": results.unavailable,
        "verified": results.verified,
        "idle_share_of_a_core": results.idle_share,
        "bare_onnxruntime_rows_per_second": results.bare,
        "run_seconds": results.seconds,
        "targets": [asdict(target) for target in targets(results)],
        "rows": [_document(asdict(line)) for line in rows(results, cells)],
        "samples": [_document(asdict(sample)) for sample in results.samples],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))


def _document(entry: dict[str, object]) -> dict[str, object]:
    cell = entry.pop("cell")
    if isinstance(cell, dict):
        entry |= {"scenario": cell["scenario"]["name"], "transport": cell["transport"], "in_flight": cell["in_flight"]}
    return entry
