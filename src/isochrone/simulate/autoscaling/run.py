"""One run: a course of load, a pool, an algorithm; second by second."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from isochrone.simulate.autoscaling.courses import DAY, Course
from isochrone.simulate.autoscaling.policies.base import Policy, Reading
from isochrone.simulate.autoscaling.pool import Pool, PoolSettings, capacity
from isochrone.simulate.autoscaling.turning_points import direction_changes

#: Seconds between two measurements of the capacity of workers that become slower.
_MEASURE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run."""

    offered: int
    refused: float
    #: Admitted, and then not answered within the SLO, because the pool lost capacity.
    late: float
    worker_hours: float
    direction_changes: int
    #: Each change of the desired number: second and number.
    sizes: tuple[tuple[int, int], ...]

    @property
    def violations(self) -> float:
        """Share of requests that were refused or late."""
        return (self.refused + self.late) / self.offered if self.offered else 0.0


def run(course: Course, policy: Policy, settings: PoolSettings) -> Outcome:
    """Deterministic: all randomness is in the course."""
    pool = Pool(settings, course.leak_seconds, sum(course.rates[:60]) / 60)
    arrivals = course.arrivals
    offered_until = [0, *accumulate(arrivals)]
    served_until, capacity_until, refused_until = [0.0], [0.0], [0.0]
    nominal = capacity(settings, 1.0)
    full_in_flight = pool.full_in_flight()
    # A request waits for a batch and runs in the next one; what is left of the SLO it may queue.
    slack = settings.slo - 2 * settings.batch_seconds(settings.largest_batch)
    queued = late = paid = 0.0
    served_total = capacity_total = refused_total = 0.0
    sizes = [(0, pool.workers)]
    event, paying = 0.0, pool.paid
    limit = max(0.0, slack) * pool.total
    interval, window = policy.interval, policy.window
    for now in range(course.seconds):
        if now >= event or not now % interval:
            pool.turn(now)
            if course.leak_seconds and not now % _MEASURE_SECONDS:
                pool.measure(now)
            if not now % interval and now:
                since = max(0, now - window)
                length = now - since
                in_window = capacity_until[now] - capacity_until[since]
                served = served_until[now] - served_until[since]
                desired = policy.desired(
                    Reading(
                        now,
                        now % DAY,
                        len(pool.ready),
                        len(pool.pending),
                        pool.standby,
                        len(pool.draining) + len(pool.standby_pending),
                        (offered_until[now] - offered_until[since]) / length,
                        (refused_until[now] - refused_until[since]) / length,
                        served / in_window if in_window else 1.0,
                        pool.in_flight(served_until[now] - served_until[now - 1], queued),
                        queued,
                        pool.capacities,
                        nominal,
                        full_in_flight,
                    )
                )
                if desired != pool.workers:
                    pool.scale(now, desired)
                    if pool.workers != sizes[-1][1]:
                        sizes.append((now, pool.workers))
            event, paying = pool.next_event(), pool.paid
            limit = max(0.0, slack) * pool.total
            if queued > limit:
                late += queued - limit
                queued = limit
        total = pool.total
        arrived = arrivals[now]
        room = total + limit - queued
        if arrived > room:
            refused_total += arrived - room
            queued += room
        else:
            queued += arrived
        served = queued if queued < total else total
        queued -= served
        served_total += served
        capacity_total += total
        served_until.append(served_total)
        capacity_until.append(capacity_total)
        refused_until.append(refused_total)
        paid += paying
    return Outcome(
        offered_until[-1],
        refused_total,
        late,
        paid / 3600,
        direction_changes([number for _, number in sizes]),
        tuple(sizes),
    )
