"""The figures of runs as tables for people and as JSON for programs. Reads summaries; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import typer
from rich.table import Table

from isochrone.bench.analysis.bottleneck import generator_verdict
from isochrone.bench.analysis.comparison import Comparison
from isochrone.bench.analysis.distribution import Distribution
from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.ramp import Ramp
from isochrone.bench.analysis.slo import Judgement
from isochrone.bench.analysis.summary import Part, Summary, is_answered, unseen_ns
from isochrone.bench.results.outcomes import Run
from isochrone.cli.console import cell, counted, make_console, plain, table
from isochrone.clock import MILLISECOND, SECOND

_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
#: Requests that waited this much longer for a connection than the generator was late.
_WAITED_NS = MILLISECOND
#: Of the answers, from which on their rate is said to be too low.
_UNSEEN_SHARE = 0.02


def print_run(run: Run, summary: Summary, judgements: Sequence[Judgement]) -> None:
    console = make_console()
    console.print(plain(load_line(run)), markup=False)
    parts = [summary.total, *(summary.kinds if len(summary.kinds) > 1 else ())]
    console.print(_requests_table(parts))
    console.print(_latency_table(parts))
    for message, count in summary.errors.items():
        console.print(plain(f"{count} × {message}"), markup=False)
    for judgement in judgements:
        console.print(judgement.sentence, markup=False)
    for line in remarks(run):
        console.print(line, style="yellow", markup=False)


def load_line(run: Run) -> str:
    load = f"{run.in_flight} in flight" if run.rate is None else f"{run.rate:g} requests/s intended"
    processes = counted(len(run.generators), "generator process")
    busiest = max((each.cpu_share for each in run.generators), default=0.0)
    return f"{run.target}: {load}, {run.seconds:.1f} s measured, {processes} (at most {busiest:.0%} of a core)"


def remarks(run: Run) -> list[str]:
    """What limits the meaning of the figures."""
    found = []
    verdict = generator_verdict(run)
    if verdict is not None:
        found.append(verdict)
    waited = waited_requests(run)
    if waited:
        found.append(
            f"{waited:,} of {len(run.outcomes):,} requests waited in the generator for the limit of requests in flight;"
            " their latencies have this time. Raise --max-in-flight to send them to the server at once."
        )
    if run.unfinished:
        found.append(
            f"The run was interrupted: {run.unfinished:,} requests that were in flight or due have no outcome, and are"
            " not among the figures."
        )
    missing = unseen_share(run)
    if missing >= _UNSEEN_SHARE:
        found.append(
            f"Rates of answers are about {missing:.0%} too low: the warm-up of {run.warmup_seconds:g} s is shorter than"
            " latencies. Raise --warmup-seconds or --seconds."
        )
    if not len(run.outcomes):
        found.append("No request was measured.")
    return found


def unseen_share(run: Run) -> float:
    """Which share of the answers is left out of rates, since requests before the warm-up would have had them.

    By the latencies at the start of the run: those of an overloaded server grow.
    """
    outcomes = run.outcomes
    chosen = is_answered(outcomes.outcome) & (outcomes.intended_ns <= run.seconds * SECOND / 10)
    latency = (outcomes.ended_ns - outcomes.intended_ns)[chosen]
    if not len(latency) or run.rate is None:
        return 0.0
    seen = run.warmup_seconds * SECOND + unseen_ns(run)
    return float(np.maximum(latency - seen, 0).mean()) / (run.seconds * SECOND)


def waited_requests(run: Run) -> int:
    """Requests of an open loop that were held back by the limit of requests in flight."""
    if run.rate is None or not len(run.outcomes):
        return 0
    lag = max((each.lag_max_ns for each in run.generators), default=0)
    waits = run.outcomes.sent_ns - run.outcomes.intended_ns
    return int(np.count_nonzero(waits > lag + _WAITED_NS))


def run_json(run: Run, summary: Summary, judgements: Sequence[Judgement], *, is_interrupted: bool) -> dict[str, Any]:
    return {
        **summary.as_json(),
        "interrupted": is_interrupted,
        "unfinished": run.unfinished,
        "stalls_ms": [[begins / MILLISECOND, ends / MILLISECOND] for begins, ends in run.stalls],
        "generators": [
            {
                "cpu_share": each.cpu_share,
                "lag_p50_ms": each.lag_p50_ns / MILLISECOND,
                "lag_p99_ms": each.lag_p99_ns / MILLISECOND,
                "lag_max_ms": each.lag_max_ns / MILLISECOND,
            }
            for each in run.generators
        ],
        "remarks": remarks(run),
        "slo": [
            {"objective": each.objective.text, "verdict": str(each.verdict), "sentence": each.sentence}
            for each in judgements
        ],
    }


def ramp_json(ramp: Ramp, sentence: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kept, missed = ramp.interval
    result = ramp.result
    return {
        "ramp": {
            "rate": kept,
            "missed_rate": missed,
            "finished": result is not None,
            "clear": result.is_clear if result is not None else False,
            "limited_by_generator": bool(result is not None and result.generator),
            "verdict": sentence,
        },
        "runs": list(runs),
    }


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_comparison(comparison: Comparison, names: tuple[str, str]) -> None:
    console = make_console()
    first, second = map(cell, names)
    made = table("", "figure", first, second, "difference", "verdict", right=(first, second, "difference"))
    for each in comparison.differences:
        scale, unit = (MILLISECOND, " ms") if each.unit == "ns" else (1, "")
        made.add_row(
            each.name,
            f"{each.a / scale:.4g}{unit}",
            f"{each.b / scale:.4g}{unit}",
            f"{each.shown(each.low)} … {each.shown(each.high)}",
            str(each.verdict),
        )
    console.print(made)
    for warning in comparison.warnings:
        console.print(plain(warning), style="yellow", markup=False)
    console.print(plain(comparison.sentence), markup=False)


def _requests_table(parts: Sequence[Part]) -> Table:
    columns = ("requests", "answered/s", "in time/s", "late", "rejected", "failed", "unsent")
    made = table("", "kind", *columns, right=columns)
    for part in parts:
        counts = part.counts
        made.add_row(
            cell(part.name),
            f"{part.total:,}",
            f"{part.rate:,.1f}",
            f"{part.goodput:,.1f}",
            *(f"{counts[name]:,}" for name in ("late", "rejected", "failed", "unsent")),
        )
    return made


def _latency_table(parts: Sequence[Part]) -> Table:
    columns = (*(f"p{percent:g}" for percent in _PERCENTILES), "max")
    made = table("latency from the intended instant", "kind", *columns, right=columns)
    for part in parts:
        made.add_row(cell(part.name), *_cells(part.latency))
        if len(part.first_token):
            made.add_row(cell(f"{part.name}, first token"), *_cells(part.first_token))
    return made


def _cells(distribution: Distribution) -> list[str]:
    if not len(distribution):
        return ["–"] * (len(_PERCENTILES) + 1)
    cells = []
    for percent in _PERCENTILES:
        estimate = distribution.percentile(percent)
        assert estimate is not None
        cells.append(f"{shown_ns(estimate.value)} ({shown_ns(estimate.low)}–{shown_ns(estimate.high)})")
    return [*cells, shown_ns(distribution.highest)]
