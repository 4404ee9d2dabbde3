"""The figures of one period of open-loop load: admitted, in time, rejected, latencies. Pure."""

from dataclasses import dataclass

import numpy as np

from bench.worker.generator import Outcome

#: Our worker's rejection on arrival has these words; a request with another 504 was admitted and dropped later.
REFUSED_ON_ARRIVAL = b"would miss"


@dataclass(frozen=True)
class Point:
    """One server at one rate. Rates per second, latencies in ms from the *scheduled* instant, shares from 0 to 1."""

    server: str
    percent_of_capacity: float
    start_ns: int
    end_ns: int
    offered: int
    offered_rate: float
    admitted: int
    refused: int
    #: Admitted, then dropped by the server because its deadline passed; counts as not in time.
    dropped: int
    #: No answer, or an answer that is neither a result nor a rejection; counts as admitted and not in time.
    failed: int
    in_time: int
    #: None when nothing was admitted.
    in_time_of_admitted: float | None
    #: The same, counted from the instant the request left the generator: its own lateness taken out.
    in_time_of_admitted_from_send: float | None
    goodput_rate: float
    #: (scheduled, answered) of every answer that came late: to be laid beside the stalls of the machine.
    late_intervals: list[tuple[int, int]]
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    refusal_p50_ms: float | None
    refusal_p99_ms: float | None
    generator_late_p50_ms: float
    generator_late_p99_ms: float
    generator_late_max_ms: float
    generator_cpu_share: float
    waited_for_connection: int


def summarise(server: str, percent: float, outcome: Outcome, deadline_ms: float, refusal_statuses: set[int]) -> Point:
    """Counts one outcome. A status in `refusal_statuses` is a rejection; so is a 504 on arrival."""
    scheduled, sent = np.array(outcome.scheduled), np.array(outcome.sent)
    answered, status = np.array(outcome.answered), np.array(outcome.status)
    refused = np.isin(status, list(refusal_statuses))
    dropped = np.zeros(len(status), bool)
    for number, answer in outcome.errors.items():
        if status[number] == 504 and 504 not in refusal_statuses:
            on_arrival = REFUSED_ON_ARRIVAL in answer
            refused[number], dropped[number] = on_arrival, not on_arrival
    succeeded = status == 200
    failed = ~(succeeded | refused | dropped)
    latency = (answered - scheduled) / 1e6
    in_time = succeeded & (latency <= deadline_ms)
    in_time_from_send = succeeded & ((answered - sent) / 1e6 <= deadline_ms)
    admitted = int((~refused).sum())
    late = (sent - scheduled) / 1e6
    seconds = (outcome.scheduled[-1] - outcome.scheduled[0]) / 1e9
    missed = np.flatnonzero(succeeded & ~in_time)

    def percentile(values: np.ndarray, share: float) -> float | None:
        return float(np.percentile(values, share)) if len(values) else None

    return Point(
        server=server,
        percent_of_capacity=percent,
        start_ns=outcome.scheduled[0],
        end_ns=int(answered.max()),
        offered=len(status),
        offered_rate=len(status) / seconds,
        admitted=admitted,
        refused=int(refused.sum()),
        dropped=int(dropped.sum()),
        failed=int(failed.sum()),
        in_time=int(in_time.sum()),
        in_time_of_admitted=float(in_time.sum() / admitted) if admitted else None,
        in_time_of_admitted_from_send=float(in_time_from_send.sum() / admitted) if admitted else None,
        goodput_rate=float(in_time.sum() / seconds),
        late_intervals=[(int(scheduled[i]), int(answered[i])) for i in missed],
        p50_ms=percentile(latency[succeeded], 50),
        p99_ms=percentile(latency[succeeded], 99),
        p999_ms=percentile(latency[succeeded], 99.9),
        refusal_p50_ms=percentile(latency[refused], 50),
        refusal_p99_ms=percentile(latency[refused], 99),
        generator_late_p50_ms=float(np.percentile(late, 50)),
        generator_late_p99_ms=float(np.percentile(late, 99)),
        generator_late_max_ms=float(late.max()),
        generator_cpu_share=outcome.cpu_share,
        waited_for_connection=outcome.waited_for_connection,
    )


def overlapping(intervals: list[tuple[int, int]], stalls: list[tuple[int, int]]) -> int:
    """How many intervals (start, end) share an instant with a stall (waking, lateness)."""
    return sum(any(at - late <= end and at >= start for at, late in stalls) for start, end in intervals)
