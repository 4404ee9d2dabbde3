"""One use of the command: a run, or the runs of a ramp, until they end or a signal interrupts them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from isochrone.bench.analysis.bottleneck import generator_verdict
from isochrone.bench.analysis.ramp import Ramp
from isochrone.bench.analysis.slo import Judgement, Slo, Verdict, overall, parse_slo
from isochrone.bench.analysis.summary import Summary, summarize
from isochrone.bench.processes import measure
from isochrone.bench.results.outcomes import Run
from isochrone.bench.target_check import declared_inputs
from isochrone.bench.workload.spec import Workload
from isochrone.cli.bench.progress import Show, shown_progress
from isochrone.cli.bench.view import load_line, print_json, print_run, ramp_json, remarks, run_json
from isochrone.cli.console import make_console, plain
from isochrone.client.answers import TensorMetadata
from isochrone.errors import FlagError, IsochroneError
from isochrone.stop_signals import stop_signals


@dataclass(frozen=True, slots=True)
class Session:
    workload: Workload
    processes: int
    #: As the flag gives it; "": none.
    slo: str
    is_ramp: bool
    max_rate: float
    tolerance: float


@dataclass(slots=True)
class Finished:
    """What was measured."""

    slo: Slo | None
    ramp: Ramp | None
    runs: list[Run] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    #: Why a ramp ended before its end: a run could not be made.
    failure: str = ""
    #: The number of the signal that interrupted it.
    signal: int | None = None

    @property
    def best(self) -> Run:
        """The run, or of a ramp the last one at the highest rate that kept the SLO."""
        if self.ramp is not None:
            kept, _ = self.ramp.interval
            for run in reversed(self.runs):
                if run.rate == kept:
                    return run
        return self.runs[-1]

    @property
    def keeps_slo(self) -> bool:
        """True without one."""
        if self.ramp is not None:
            return self.ramp.interval[0] is not None
        return self.slo is None or overall(self._judgements(self.summaries[-1])) is Verdict.MET

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self.summaries.append(summarize(run))

    def show(self, *, as_json: bool) -> None:
        if as_json:
            self._show_json()
            return
        best = self.best
        if self.ramp is not None:
            console = make_console()
            for run, summary in zip(self.runs, self.summaries, strict=True):
                p99 = summary.total.latency.percentile(99)
                shown = "no answers" if p99 is None else f"p99 {p99.value / 1e6:.3g} ms"
                console.print(f"{run.rate:.1f} requests/s: {shown}, {self._verdict(summary)}", markup=False)
            console.print(plain(self._ramp_sentence(self.ramp)), markup=False)
            for line in remarks(best):
                console.print(plain(line), style="yellow", markup=False)
            return
        summary = self.summaries[-1]
        print_run(best, summary, self._judgements(summary))

    def _show_json(self) -> None:
        runs = [
            run_json(run, summary, self._judgements(summary), is_interrupted=self.signal is not None)
            for run, summary in zip(self.runs, self.summaries, strict=True)
        ]
        print_json(runs[-1] if self.ramp is None else ramp_json(self.ramp, self._ramp_sentence(self.ramp), runs))

    def _ramp_sentence(self, ramp: Ramp) -> str:
        if ramp.result is not None:
            return ramp.result.sentence
        kept, missed = (f"{rate:,.1f}" if rate is not None else "no rate" for rate in ramp.interval)
        why = f"A run could not be made: {self.failure}" if self.failure else "The ramp was interrupted."
        return f"{why} Until then {kept} requests/s kept the SLO, and {missed} missed it."

    def _judgements(self, summary: Summary) -> Sequence[Judgement]:
        return () if self.slo is None else self.slo.judge(summary)

    def _verdict(self, summary: Summary) -> str:
        return str(overall(self._judgements(summary)))


def measured(session: Session, *, quiet: bool) -> Finished:
    """Run it. Raises ``IsochroneError``."""
    slo = parse_slo(session.slo) if session.slo else None
    ramp = None
    if session.is_ramp:
        if slo is None:
            raise FlagError("--ramp", "--slo with it, such as --slo 'p99<20ms'", "none")
        if session.workload.rate is None:
            raise FlagError("--ramp", "--rate with it, or no load at all", "--concurrency or --trace")
        ramp = Ramp(slo, session.workload.rate, session.max_rate, session.tolerance)
    if slo is not None and slo.needs_streams and not any(kind.stream for kind in session.workload.kinds):
        raise FlagError("--slo", "--stream with limits of ttft_: only streams have a first token", f"'{slo}'")
    finished = Finished(slo, ramp)
    asyncio.run(_measured(session, finished, quiet))
    return finished


async def _measured(session: Session, finished: Finished, quiet: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    current = asyncio.current_task()
    assert current is not None

    def interrupt(number: int) -> None:
        if stop.is_set():
            # Asked twice: nothing more is reported.
            current.cancel()
        finished.signal = number
        stop.set()

    handled = stop_signals()
    for number in handled:
        loop.add_signal_handler(number, interrupt, int(number))
    try:
        await _run_all(session, finished, stop, quiet)
    except asyncio.CancelledError:
        raise typer.Exit(128 + (finished.signal or signal.SIGINT)) from None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def _run_all(session: Session, finished: Finished, stop: asyncio.Event, quiet: bool) -> None:
    workload, ramp = session.workload, finished.ramp
    declared = await declared_inputs(workload)
    title = [workload.target]
    with shown_progress(lambda: title[0], workload.seconds, quiet=quiet) as show:
        if ramp is None:
            await _run_once(workload, declared, session.processes, finished, stop, show)
            return
        while (rate := ramp.next_rate()) is not None and not stop.is_set():
            # Each run has arrivals of its own: the same luck twice would be no second measurement.
            changed = workload.model_copy(update={"rate": rate, "seed": workload.seed + len(finished.runs)})
            title[0] = f"{rate:.1f} requests/s"
            try:
                run = await _run_once(changed, declared, session.processes, finished, stop, show)
            except IsochroneError as error:
                if not finished.runs:
                    raise
                # What was measured before counts, and is shown and kept.
                finished.failure = str(error)
                return
            if stop.is_set():
                return
            ramp.observe(rate, finished.summaries[-1], generator_verdict(run))
            if not quiet:
                typer.echo(plain(load_line(run)), err=True)
        if not finished.runs:
            raise asyncio.CancelledError


async def _run_once(
    workload: Workload,
    declared: Sequence[Sequence[TensorMetadata]],
    processes: int,
    finished: Finished,
    stop: asyncio.Event,
    show: Show,
) -> Run:
    run, _ = await measure(workload, declared, processes, report=show, stop=stop)
    finished.add(run)
    return run
