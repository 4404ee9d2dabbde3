"""Report of a hop run: comparisons, tables and the JSON file. Must never run anything."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.gateway.hop_cells import DIRECT, OURS, HopCell, Results, Sample
from bench.worker.comparison import Spread, Target
from bench.worker.machine import describe

#: A side that used this share of its core or more was full: it set the pace.
FULL_SHARE = 0.9


@dataclass(frozen=True)
class Row:
    """One contender on one cell; spreads over rounds. Added: its median less the direct one's of the same round."""

    contender: str
    cell: str
    requests_per_second: Spread
    median_us: Spread | None
    added_us: Spread | None
    #: CPU of the proxy for one request, and what one core of it could do if nothing else held it back.
    proxy_cpu_us: Spread | None
    requests_per_proxy_core: Spread | None
    proxy_share: Spread
    upstream_share: Spread
    client_share: Spread
    others_share: Spread
    #: Ours over its: requests/s, requests per proxy core; and our added median over its. Round by round.
    rate_ratio: Spread | None
    core_ratio: Spread | None
    added_ratio: Spread | None


Measure = Callable[[Sample, Sample | None], float | None]


def _rate(sample: Sample, direct: Sample | None) -> float | None:
    return sample.figure.requests_per_second if sample.figure else None


def _median(sample: Sample, direct: Sample | None) -> float | None:
    return sample.figure.median_us if sample.figure else None


def _added(sample: Sample, direct: Sample | None) -> float | None:
    through, beside = _median(sample, None), _median(direct, None) if direct else None
    return through - beside if through is not None and beside is not None else None


def _proxy_cpu(sample: Sample, direct: Sample | None) -> float | None:
    return sample.proxy_cpu / sample.figure.requests * 1e6 if sample.figure and sample.proxy_cpu else None


def _per_core(sample: Sample, direct: Sample | None) -> float | None:
    cost = _proxy_cpu(sample, direct)
    return 1e6 / cost if cost else None


def row(results: Results, contender: str, cell: HopCell) -> Row | None:
    """One line of the table, or None when there is no figure."""
    samples, direct = results.by_round(contender, cell), results.by_round(DIRECT, cell)
    ours = results.by_round(OURS, cell) if contender not in (OURS, DIRECT) else {}
    if not samples:
        return None

    def spread(measure: Measure) -> Spread | None:
        values = [value for n, s in samples.items() if (value := measure(s, direct.get(n))) is not None]
        return Spread.of(values) if values else None

    def ratio(measure: Measure) -> Spread | None:
        pairs = [(measure(ours[n], direct.get(n)), measure(samples[n], direct.get(n))) for n in samples if n in ours]
        values = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
        return Spread.of(values) if values else None

    def share(side: str) -> Spread:
        return Spread.of([getattr(sample, side) / sample.seconds for sample in samples.values()])

    through = contender != DIRECT
    return Row(
        contender=contender,
        cell=cell.name,
        requests_per_second=Spread.of([s.figure.requests_per_second for s in samples.values() if s.figure]),
        median_us=spread(_median),
        added_us=spread(_added) if through and cell.cell.in_flight == 1 else None,
        proxy_cpu_us=spread(_proxy_cpu) if through else None,
        requests_per_proxy_core=spread(_per_core) if through else None,
        proxy_share=share("proxy_cpu"),
        upstream_share=share("upstream_cpu"),
        client_share=share("client_cpu"),
        others_share=Spread.of([sample.others_share for sample in samples.values()]),
        rate_ratio=ratio(_rate),
        core_ratio=ratio(_per_core),
        added_ratio=ratio(_added) if cell.cell.in_flight == 1 else None,
    )


def rows(results: Results, cells: Sequence[HopCell]) -> list[Row]:
    """Every line, cell by cell."""
    names = [DIRECT, *results.versions]
    return [line for cell in cells for name in names if (line := row(results, name, cell)) is not None]


def targets(results: Results, cells: Sequence[HopCell]) -> list[Target]:
    """The gateway's targets beside Envoy, and the figures of this run."""
    found = []
    for cell in cells:
        line = row(results, "envoy", cell)
        label = f"{cell.cell.transport}, {cell.cell.in_flight} in flight ({cell.placement})"
        if cell.cell.in_flight == 1:
            claim, value = f"{label}: added median at most half of Envoy's", line.added_ratio if line else None
            met = value.median <= 0.5 if value else None
        else:
            claim, value = f"{label}: at least 1.5× Envoy's requests/s", line.rate_ratio if line else None
            met = value.median >= 1.5 if value else None
        measured = f"{value.median:.2f}× ({value.low:.2f}–{value.high:.2f})" if value else "not measured in this run"
        if value and line and line.core_ratio and cell.cell.in_flight > 1:
            measured += f"; per proxy core {line.core_ratio.median:.2f}×"
        found.append(Target(claim, measured, met))
    return found


def print_report(results: Results, cells: Sequence[HopCell]) -> None:
    """The table, the bottleneck of each line, and the promises."""
    widths = "  {:11}{:>26}{:>9}{:>26}{:>9}{:>10}{:>7}{:>7}{:>7}{:>7}  {}"
    print("\nrequests/s: median over rounds (lowest–highest); added: median less the direct one of that round, µs")
    print("CPU µs and requests/s per core: of the proxy alone. proxy, upstr, client, others: cores each used")
    for cell in cells:
        lines = rows(results, [cell])
        if not lines:
            continue
        print(f"\n{cell.cell.transport}, {cell.cell.in_flight} in flight, {cell.placement}")
        sides = ("proxy", "upstr", "client", "others")
        print(widths.format("", "requests/s", "median", "added", "CPU µs", "per core", *sides, "ours/it"))
        for line in lines:
            print(widths.format(*_columns(line)))
    for name, why in results.unavailable.items():
        print(f"\n{name} did not take part: {why.splitlines()[0]}")
    failed = {(s.contender, s.cell.name, s.problem.splitlines()[0]) for s in results.samples if s.problem}
    for contender, where, problem in sorted(failed):
        print(f"failed: {contender}, {where}: {problem}")
    print("\nTargets")
    for target in targets(results, cells):
        verdict = {True: "MET   ", False: "MISSED", None: "  --  "}[target.met]
        print(f"  {verdict}  {target.claim}: {target.measured}")


def _columns(line: Row) -> list[str]:
    rate, added = line.requests_per_second, line.added_us
    shares = (line.proxy_share, line.upstream_share, line.client_share, line.others_share)
    ratios = []
    if line.rate_ratio:
        ratios.append(f"{line.rate_ratio.median:.2f}× req/s")
    if line.core_ratio:
        ratios.append(f"{line.core_ratio.median:.2f}× per core")
    if line.added_ratio:
        ratios.append(f"{line.added_ratio.median:.2f}× added")
    return [
        line.contender,
        f"{rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f})",
        f"{line.median_us.median:,.0f}" if line.median_us else "",
        f"{added.median:,.1f} ({added.low:,.1f}–{added.high:,.1f})" if added else "",
        f"{line.proxy_cpu_us.median:,.1f}" if line.proxy_cpu_us else "",
        f"{line.requests_per_proxy_core.median:,.0f}" if line.requests_per_proxy_core else "",
        *(f"{share.median:.0%}" for share in shares),
        ", ".join(ratios) + _bottleneck(line),
    ]


def _bottleneck(line: Row) -> str:
    """The sides that used a full core. On two cores, upstream and client share one: their sum counts."""
    if line.proxy_share.median >= FULL_SHARE:
        return "  [proxy full]"
    if line.upstream_share.median + line.client_share.median >= FULL_SHARE:
        return "  [client+upstream full]"
    return ""


def write_json(results: Results, cells: Sequence[HopCell], path: Path, settings: dict[str, object]) -> None:
    """Every sample, every derived row, and the machine."""
    document = {
        "machine": describe(),
        "settings": settings,
        "versions": results.versions,
        "unavailable": results.unavailable,
        "verified": results.verified,
        "run_seconds": results.seconds,
        "targets": [asdict(target) for target in targets(results, cells)],
        "rows": [asdict(line) for line in rows(results, cells)],
        "samples": [{**asdict(sample), "cell": sample.cell.name} for sample in results.samples],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1))
