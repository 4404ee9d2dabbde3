"""The progress of a run: one line that changes on a terminal, plain lines elsewhere. On standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import typer
from rich.console import Console

from isochrone.bench.generator import Progress
from isochrone.bench.results.outcomes import OUTCOME_NAMES
from isochrone.cli.console import cell, plain
from isochrone.clock import MILLISECOND

#: Seconds between lines where there is no terminal.
_LINE_SECONDS = 5.0

Show = Callable[[Progress], None]


@contextmanager
def shown_progress(title: Callable[[], str], seconds: float, *, quiet: bool) -> Iterator[Show]:
    """``title``: what is measured now; a ramp changes it."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda progress: None
    elif console.is_terminal:
        with console.status(cell(f"{title()}: starting")) as status:
            yield lambda progress: status.update(cell(line_of(title(), progress, seconds)))
    else:
        last = [monotonic()]

        def show(progress: Progress) -> None:
            if monotonic() - last[0] >= _LINE_SECONDS:
                last[0] = monotonic()
                typer.echo(plain(line_of(title(), progress, seconds)), err=True)

        yield show


def line_of(title: str, progress: Progress, seconds: float) -> str:
    if progress.seconds < 0 or not progress.counts:
        return f"{title}: warm-up, {progress.in_flight} in flight"
    counts = {name: count for name, count in zip(OUTCOME_NAMES, progress.counts, strict=True) if count}
    ended = sum(progress.counts)
    bad = "".join(f", {count} {name}" for name, count in counts.items() if name != "ok")
    latencies = f"median {progress.median_ns / MILLISECOND:.3g} ms, p99 {progress.p99_ns / MILLISECOND:.3g} ms"
    rate = ended / progress.seconds if progress.seconds > 0 else 0.0
    return (
        f"{title}: {progress.seconds:.0f} of {seconds:g} s, {ended} requests ({rate:.0f}/s){bad}; {latencies};"
        f" {progress.in_flight} in flight"
    )
