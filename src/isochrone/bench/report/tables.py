"""The tables of the report: runs, latencies with their intervals, differences, errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from isochrone.bench.analysis.comparison import Comparison, ComparisonVerdict, shown_figure
from isochrone.bench.analysis.distribution import Distribution, Estimate
from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.summary import PERCENTILES, Part
from isochrone.bench.report.shown_run import ShownRun
from isochrone.bench.results.outcomes import OUTCOME_NAMES

_MOST_ERRORS = 20
_STYLES = {
    ComparisonVerdict.SLOWER: "worse",
    ComparisonVerdict.MORE_ERRORS: "worse",
    ComparisonVerdict.FASTER: "better",
    ComparisonVerdict.FEWER_ERRORS: "better",
}


def runs_table(runs: Sequence[ShownRun]) -> str:
    """One row per run, and per kind where a run has several."""
    head = (
        "run",
        "load",
        "seconds",
        "requests",
        "intended/s",
        "answered/s",
        "within deadline/s",
        *OUTCOME_NAMES,
        "errors",
    )
    rows = []
    for shown in runs:
        for number, part in enumerate(_parts(shown)):
            first = (_run_name(shown), escape(shown.load), f"{shown.run.seconds:,.4g}")
            names = first if number == 0 else (_kind_name(part), "", "")
            rows.append(
                (
                    *names,
                    f"{part.total:,}",
                    *(_rate(each) for each in (part.intended_rate, part.rate, part.goodput)),
                    *(f"{part.counts[name]:,}" for name in OUTCOME_NAMES),
                    _share(part.errors.share),
                )
            )
    return _table(head, rows)


def latency_table(runs: Sequence[ShownRun]) -> str:
    """Percentiles of answered requests: from the intended instant, from the sending, and of first tokens."""
    head = ("run", "measured", *(f"p{percent:g}" for percent in PERCENTILES), "max")
    rows = []
    for shown in runs:
        for number, part in enumerate(_parts(shown)):
            name = _run_name(shown) if number == 0 else _kind_name(part)
            for measure, distribution in (
                ("from the intended instant", part.latency),
                ("from the sending", part.latency_from_sending),
                ("first token", part.first_token),
            ):
                if len(distribution):
                    rows.append((name, measure, *_durations(distribution)))
                    name = ""
    return _table(head, rows) if rows else "<p>No request was answered.</p>"


def comparison_table(comparison: Comparison, names: tuple[str, str]) -> str:
    head = ("figure", *names, "difference", "interval", "verdict")
    rows = []
    for each in comparison.differences:
        relative = "" if each.relative is None else f" ({each.relative * 100:+.1f} %)"
        style = _STYLES.get(each.verdict, "")
        rows.append(
            (
                escape(each.name),
                shown_figure(each.a, each.unit),
                shown_figure(each.b, each.unit),
                each.shown(each.difference) + relative,
                f"{each.shown(each.low)} to {each.shown(each.high)}",
                f'<span class="{style}">{each.verdict}</span>',
            )
        )
    return _table(head, rows)


def errors_table(runs: Sequence[ShownRun]) -> str:
    """Messages by count, of all runs; empty if there are none."""
    rows = []
    for shown in runs:
        most = sorted(shown.run.errors.items(), key=lambda each: (-each[1], each[0]))
        rows += [(_run_name(shown), escape(message), f"{count:,}") for message, count in most[:_MOST_ERRORS]]
        left = sum(count for _, count in most[_MOST_ERRORS:])
        if left:
            rows.append((_run_name(shown), "others", f"{left:,}"))
    return _table(("run", "error", "requests"), rows, "messages") if rows else ""


def _parts(shown: ShownRun) -> Iterable[Part]:
    yield shown.summary.total
    if len(shown.summary.kinds) > 1:
        yield from shown.summary.kinds


def _durations(distribution: Distribution) -> Iterable[str]:
    for percent in PERCENTILES:
        estimate = distribution.percentile(percent)
        if estimate is not None:
            yield f"{shown_ns(estimate.value)}<small>{_bounds(estimate)}</small>"
    yield shown_ns(distribution.highest)


def _bounds(estimate: Estimate) -> str:
    return f"{shown_ns(estimate.low)} to {shown_ns(estimate.high)}"


def _share(estimate: Estimate) -> str:
    low, value, high = (f"{each * 100:.2g}" for each in (estimate.low, estimate.value, estimate.high))
    return f"{value} %<small>{low} to {high} %</small>"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _run_name(shown: ShownRun) -> str:
    return f'<b class="{shown.colour} name">{escape(shown.label)}</b>'


def _kind_name(part: Part) -> str:
    return f'<span class="kind">{escape(part.name)}</span>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], style: str = "") -> str:
    """Cells are HTML. On a narrow screen the table scrolls by itself."""
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table {style}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
