"""Whether the generator itself limited a run: its figures would be taken for the server's otherwise."""

from __future__ import annotations

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


def generator_verdict(run: Run) -> str | None:
    """One sentence that says what to change; None: the figures are the server's."""
    if not run.generators:
        return None
    processes = len(run.generators)
    lower = "lower --rate" if run.rate is not None else "lower the requests in flight"
    total = summarize(run).total
    unsent = _unsent_by_lag(run)
    if unsent:
        return (
            f"The generator was the bottleneck: it could not send {unsent:,} of {total.total:,} requests; raise"
            f" --processes above {processes}, or {lower}."
        )
    busiest = max(run.generators, key=lambda each: each.cpu_share)
    if busiest.cpu_share >= _BUSY_SHARE:
        return (
            f"The generator was the bottleneck: one of its {_counted(processes)} used {busiest.cpu_share:.0%} of a"
            f" core; raise --processes above {processes}, or {lower}."
        )
    p99 = total.latency.percentile(99)
    # In a closed loop a request is intended when it is sent: there is no lag.
    if p99 is None or run.rate is None:
        return None
    lag = max(each.lag_p99_ns for each in run.generators)
    if lag >= _LAG_SHARE * p99.value:
        return (
            f"The generator may have been the bottleneck: it sent 1 % of the requests {shown_ns(lag)} late or later,"
            f" {lag / max(p99.value, 1):.0%} of the p99 of {shown_ns(p99.value)}; raise --processes above {processes},"
            f" {lower}, or stop other programs on this machine."
        )
    return None


def _unsent_by_lag(run: Run) -> int:
    """Requests that were not sent because the generator was late. Others waited for a server that did not answer."""
    columns = run.outcomes
    waits = (columns.sent_ns - columns.intended_ns)[columns.outcome == UNSENT]
    lag = max(each.lag_max_ns for each in run.generators)
    return int(np.count_nonzero(waits * _UNSENT_SHARE <= lag))


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
