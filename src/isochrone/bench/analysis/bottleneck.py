"""Whether the generator itself limited a run: its figures would be taken for the server's otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isochrone.bench.analysis.durations import shown_ns
from isochrone.bench.analysis.summary import summarize
from isochrone.bench.results.outcomes import UNSENT, Run

#: A process with so much of a core has nothing left for a burst.
_BUSY_SHARE = 0.9
#: A lag of so much of the latency is no longer the server's figure.
_LAG_SHARE = 0.1
#: A request that was never sent is the generator's fault if it was late by so much of the request's wait.
_UNSENT_SHARE = 0.5
#: Percentiles up to the 99th are no longer the server's if so many requests hold a stall of the generator.
_STALLED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class GeneratorLimit:
    """How the generator limited a run."""

    #: Says what to change.
    sentence: str
    #: The figures are the generator's. Otherwise they may be.
    is_certain: bool


def generator_verdict(run: Run) -> str | None:
    """One sentence that says what to change; None: the figures are the server's."""
    limit = generator_limit(run)
    return None if limit is None else limit.sentence


def generator_limit(run: Run) -> GeneratorLimit | None:
    """None: the figures are the server's."""
    if not run.generators:
        return None
    processes = len(run.generators)
    lower = "lower --rate" if run.rate is not None else "lower the requests in flight"
    total = summarize(run).total
    stalled = stalled_requests(run)
    if stalled and stalled >= _STALLED_SHARE * total.total:
        return GeneratorLimit(f"{_stall_sentence(run, stalled)} Measure again.", is_certain=True)
    unsent = _unsent_by_lag(run)
    if unsent:
        text = f"The generator was the bottleneck: it could not send {unsent:,} of {total.total:,} requests; raise"
        return GeneratorLimit(f"{text} --processes above {processes}, or {lower}.", is_certain=True)
    busiest = max(run.generators, key=lambda each: each.cpu_share)
    if busiest.cpu_share >= _BUSY_SHARE:
        text = f"The generator was the bottleneck: one of its {_counted(processes)} used {busiest.cpu_share:.0%} of a"
        return GeneratorLimit(f"{text} core; raise --processes above {processes}, or {lower}.", is_certain=True)
    p99 = total.latency.percentile(99)
    # In a closed loop a request is intended when it is sent: there is no lag.
    if p99 is not None and run.rate is not None:
        lag = max(each.lag_p99_ns for each in run.generators)
        if lag >= _LAG_SHARE * p99.value:
            return GeneratorLimit(
                f"The generator may have been the bottleneck: it sent 1 % of the requests {shown_ns(lag)} late or"
                f" later, {lag / max(p99.value, 1):.0%} of the p99 of {shown_ns(p99.value)}; raise --processes above"
                f" {processes}, {lower}, or stop other programs on this machine.",
                is_certain=False,
            )
    return GeneratorLimit(_stall_sentence(run, stalled), is_certain=False) if stalled else None


def stalled_requests(run: Run) -> int:
    """Requests that were under way while a generator process stood still."""
    touched = np.zeros(len(run.outcomes), dtype=np.bool_)
    for begins, ends in run.stalls:
        touched |= (run.outcomes.intended_ns < ends) & (run.outcomes.ended_ns > begins)
    return int(np.count_nonzero(touched))


def _stall_sentence(run: Run, requests: int) -> str:
    longest = max(ends - begins for begins, ends in run.stalls)
    return (
        f"The generator stood still, at most for {shown_ns(longest)} (it was stopped, or got no core): the latencies of"
        f" {requests:,} requests have this time, which is not the server's."
    )


def _unsent_by_lag(run: Run) -> int:
    """Requests that were not sent because the generator was late. Others waited for a server that did not answer."""
    columns = run.outcomes
    waits = (columns.sent_ns - columns.intended_ns)[columns.outcome == UNSENT]
    lag = max(each.lag_max_ns for each in run.generators)
    return int(np.count_nonzero(waits * _UNSENT_SHARE <= lag))


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
