"""The tables of the generation bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.gpu.figures import markdown, spread
from bench.gpu.generation.parts import DEADLINES, PREFILL, THROUGHPUT
from bench.gpu.generation.single_streams import CANCEL, PREFIX
from bench.gpu.generation.transformers_peer import TRANSFORMERS

Figure = dict[str, Any]
#: (heading, key of the figure, how it is written)
Column = tuple[str, str, Callable[[float], str]]

_WHOLE, _SHORT, _SHARE = "{:,.0f}".format, "{:,.2f}".format, "{:.1%}".format
_FINE_SHARE = "{:.3%}".format
_FIRST: tuple[Column, ...] = (("first p50 ms", "first_p50_ms", _SHORT), ("first p99 ms", "first_p99_ms", _SHORT))
_BETWEEN: tuple[Column, ...] = (
    ("between p50 ms", "between_p50_ms", _SHORT),
    ("between p99 ms", "between_p99_ms", _SHORT),
)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    THROUGHPUT: (
        ("streams in flight", "streams", _WHOLE),
        ("tokens/s", "tokens_per_second", _WHOLE),
        *_FIRST,
        *_BETWEEN,
        ("busiest generator", "busiest_generator", _SHARE),
    ),
    TRANSFORMERS: (("tokens/s", "tokens_per_second", _WHOLE), ("warm-up s", "warm_up_seconds", _SHORT)),
    PREFILL: (
        ("tokens/s", "tokens_per_second", _WHOLE),
        *_BETWEEN,
        ("between max ms", "between_max_ms", _SHORT),
        *_FIRST,
        ("long first p50 ms", "long_first_p50_ms", _SHORT),
        ("long first p99 ms", "long_first_p99_ms", _SHORT),
        ("long/s", "long_per_second", _SHORT),
        ("deadline ms", "between_deadline_ms", _SHORT),
    ),
    CANCEL: (
        ("streams", "streams", _WHOLE),
        ("step ms", "step_ms", _SHORT),
        ("half cut: ms", "half_ms", _SHORT),
        ("max", "half_ms_max", _SHORT),
        ("steps", "half_steps", _WHOLE),
        ("all cut: ms", "all_ms", _SHORT),
        ("max", "all_ms_max", _SHORT),
        ("steps", "all_steps", _WHOLE),
        ("max", "all_steps_max", _WHOLE),
        ("blocks left", "blocks_left", _WHOLE),
    ),
    DEADLINES: (
        ("requests", "requests", _WHOLE),
        ("refused", "refused_share", _SHARE),
        ("dropped", "dropped", _WHOLE),
        ("admitted that kept both", "kept_share_of_admitted", _SHARE),
        ("unfinished", "unfinished", _WHOLE),
        ("late at the client", "late_share", _FINE_SHARE),
        ("late in the engine", "server_late_share", _FINE_SHARE),
        ("tokens/s", "tokens_per_second", _WHOLE),
        ("tokens/s in time", "goodput_tokens_per_second", _WHOLE),
        ("of requests that kept both", "kept_requests_tokens_per_second", _WHOLE),
        *_FIRST,
        *_BETWEEN,
        ("between p99.9 ms", "between_p999_ms", _SHORT),
        ("between max ms", "between_max_ms", _SHORT),
        ("generator late p99 ms", "generator_late_p99_ms", _SHORT),
    ),
    PREFIX: (
        ("first request p50 ms", "first_request_p50_ms", _SHORT),
        ("later p50 ms", "later_requests_p50_ms", _SHORT),
        ("later p99 ms", "later_requests_p99_ms", _SHORT),
        ("reused tokens", "reused_tokens", _WHOLE),
    ),
}


def report(figures: Sequence[Figure]) -> tuple[str, bool]:
    """The tables, and whether a figure has a problem."""
    lines: list[str] = []
    for part, columns in _COLUMNS.items():
        found = [each for each in figures if each["part"] == part and not each["cell"].endswith("/capacity")]
        if not found:
            continue
        rows = []
        for cell in dict.fromkeys(each["cell"] for each in found):
            rounds = [each for each in found if each["cell"] == cell]
            rows.append((cell, *(spread((each.get(key) for each in rounds), form) for _, key, form in columns)))
        lines += [markdown((part, *(heading for heading, _, _ in columns)), rows), ""]
    lines += _ratios(figures)
    for each in figures:
        if each["cell"] == f"{DEADLINES}/capacity" and "drift" in each:
            lines.append(f"capacity after the last of them: {each['drift']:+.0%}")
        elif each["cell"] == f"{DEADLINES}/capacity":
            lines.append(
                f"capacity {each['capacity']:.1f} requests/s, {each['tokens']:,.0f} tokens/s; deadlines: first token "
                f"{each['first_ms']:.0f} ms, between tokens {each['between_ms']:.1f} ms"
            )
    problems = [f"{each['cell']}: {each['problem']}" for each in figures if each.get("problem")]
    return "\n".join([*lines, *problems]), bool(problems)


def _ratios(figures: Sequence[Figure]) -> list[str]:
    """Continuous batching against one by one, static batches of the same size, and the peer."""
    rates: dict[str, list[float]] = {}
    for each in figures:
        if each.get("tokens_per_second") and not each.get("problem"):
            rates.setdefault(each["cell"], []).append(each["tokens_per_second"])
    medians = {cell: sorted(values)[len(values) // 2] for cell, values in rates.items()}
    lines = []
    for cell, rate in medians.items():
        head, _, streams = cell.rpartition("/")
        if head != f"{THROUGHPUT}/continuous":
            continue
        others = [f"{THROUGHPUT}/single/1", f"{THROUGHPUT}/static/{streams}"]
        others += [f"{TRANSFORMERS}/{mode}/{streams}" for mode in ("dynamic", "static-cache")]
        said = [f"{rate / medians[other]:.2f} x {other}" for other in others if other in medians]
        if said:
            lines.append(f"{cell}: {', '.join(said)}")
    return [*lines, ""] if lines else []
