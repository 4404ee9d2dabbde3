"""The autoscaler of one pool: a reading in, a decision out. Pure; what learns is updated after each decision.

Up: as many workers as the load a start-up time ahead needs at the measured capacity, at once, corrected by queue waits
and refusals that the capacity does not explain. Workers that start count as if they served. Down: only to a number
whose workers could have taken the whole load with room for all of the last minutes, and in steps.

It never scales by latency percentiles: they are flat until a pool is full, and vertical after. It never takes a missing
figure for zero.
"""

from __future__ import annotations

from collections import deque
from math import ceil, floor, isfinite

from isochrone.control.autoscaler.decision import Decision, Inputs, Reason
from isochrone.control.autoscaler.forecast import DailyForecast
from isochrone.control.autoscaler.observation import Observation
from isochrone.control.autoscaler.prediction import Expectation, LoadPrediction
from isochrone.control.autoscaler.settings import AutoscalerSettings

#: Per reading: how fast a correction of the capacity is taken back and made; and how far it may go.
_CORRECTION_RETURN = 0.002
_CORRECTION_GAIN = 0.1
_LEAST_CORRECTION = 0.5
#: Refusals speak of capacity only if they are this share of the load, and admitted requests wait for this share of the
#: SLO. Others have causes that more workers do not help: a deadline that no worker could meet, a circuit breaker.
_LEAST_REFUSED, _LEAST_WAIT = 0.01, 0.1
#: The most that a removal leaves free for the sake of one worker, as a share of the load: a small load keeps no second
#: worker.
_MOST_ROOM = 0.5
#: Most that waiting requests add to the needed capacity.
_MOST_FOR_QUEUE = 0.5
#: For capacities that are sums of floats.
_ROUNDING = 1e-9


class Autoscaler:
    """State of one pool. ``desired``: the last decision of another one for the same pool; None: there was none."""

    def __init__(self, settings: AutoscalerSettings, desired: int | None = None) -> None:
        self._settings = settings
        self._prediction = LoadPrediction(settings.start_up_seconds, settings.trend_seconds)
        self._forecast = DailyForecast(settings.start_up_seconds) if settings.has_forecast else None
        #: The last decision; None: there was none.
        self._desired = desired
        self._instant: float | None = None
        #: Instant, and the workers that were needed then with hysteresis; only those of the window that are a maximum.
        self._needed: deque[tuple[float, int]] = deque()
        #: Since when lower numbers are observed, and the last instant of a removal.
        self._observed_since: float | None = None
        self._removed_at = float("-inf")
        self._last_request: float | None = None
        #: Capacity that workers show relative to what they report.
        self._correction = 1.0
        #: Capacity of one worker, of the last reading that had any.
        self._capacity = 0.0

    def decide(self, observation: Observation) -> Decision:
        """The number of workers that the pool should have now."""
        problem = self._clock_problem(observation.instant) or self._load_problem(observation)
        if problem is not None or observation.offered is None:
            return self._hold(observation, problem or Reason.STALE)
        decision, expectation = self._decide(observation, observation.offered)
        self._learn(observation, observation.offered, expectation)
        self._desired = decision.desired
        return decision

    def _clock_problem(self, instant: float) -> Reason | None:
        if not isfinite(instant):
            return Reason.CLOCK
        before, self._instant = self._instant, instant
        if before is None or 0 < instant - before <= self._settings.jump_seconds:
            return None
        # Instants of before cannot be compared with those after.
        self._prediction.forget()
        self._removed_at = float("-inf")
        self._last_request = None
        return Reason.CLOCK

    def _load_problem(self, observation: Observation) -> Reason | None:
        figures = (observation.age, observation.refused, observation.queue_wait, observation.cost_per_worker)
        capacities = (*observation.ready, *observation.pending, *observation.standby)
        offered = observation.offered
        if offered is None or not all(isfinite(each) and each >= 0 for each in (offered, *figures, *capacities)):
            return Reason.STALE
        return Reason.STALE if observation.age > self._settings.stale_seconds else None

    def _hold(self, observation: Observation, reason: Reason) -> Decision:
        # Without readings, nobody knows that fewer workers sufficed.
        self._needed.clear()
        self._observed_since = None
        held = self._desired if self._desired is not None else observation.workers
        return self._bounded(held, reason, observation, self._inputs(observation), is_awake=held > 0)

    def _decide(self, observation: Observation, offered: float) -> tuple[Decision, Expectation]:
        settings = self._settings
        instant = observation.instant
        # Nobody can call a pool idle whose first worker has not served yet.
        is_starting = bool(observation.pending) and not observation.ready
        if offered > 0 or observation.is_busy or is_starting or self._last_request is None:
            self._last_request = instant
        expectation = self._prediction.expect(instant, offered)
        expected = expectation.load
        forecast = 0.0
        if self._forecast is not None and observation.time_of_day is not None:
            forecast = self._forecast.ahead(observation.time_of_day)
        ahead = max(expected, forecast)
        combined = expectation._replace(load=ahead)
        margin = settings.deviations * self._prediction.deviation * ahead
        self._measure(observation)
        inputs = self._inputs(observation, expected, margin, forecast)
        current = self._desired if self._desired is not None else observation.workers
        if self._is_idle(instant) and not forecast:
            return self._bounded(0, Reason.IDLE, observation, inputs, is_awake=False), combined
        if self._capacity <= 0:
            reason = Reason.WAKE if offered > 0 and not observation.workers else Reason.UNMEASURED
            is_awake = offered > 0 or current > 0
            return self._bounded(current, reason, observation, inputs, is_awake), combined
        queue = self._queue_factor(observation)
        now = expectation.level * queue
        later = (ahead + margin) * queue
        needed = self._workers_for(now, later, observation)
        inputs = self._inputs(observation, expected, margin, forecast, needed)
        roomy = self._workers_for(now + self._room(now), later + self._room(later), observation)
        self._remember(instant, roomy)
        if needed > current:
            reason = Reason.LOAD
            if forecast > expected:
                reason = Reason.FORECAST
            elif queue > 1 or self._correction < 1:
                reason = Reason.QUEUE
            if not observation.workers and offered > 0:
                reason = Reason.WAKE
            return self._bounded(needed, reason, observation, inputs), combined
        lower = max(self._lower(instant, current), min(current, settings.min_workers))
        reason = Reason.SURPLUS if lower < current else Reason.STEADY
        if lower < current:
            self._removed_at = instant
        return self._bounded(lower, reason, observation, inputs, is_awake=current > 0), combined

    def _measure(self, observation: Observation) -> None:
        """The capacity of one more worker: that of a usual one."""
        reported = [each for each in (*observation.ready, *observation.pending, *observation.standby) if each > 0]
        if reported:
            self._capacity = sum(reported) / len(reported)

    def _correct(self, observation: Observation, offered: float) -> None:
        """Corrects the capacity where workers refuse requests although their reports say that it suffices."""
        reported = sum(observation.ready)
        served = offered - observation.refused
        self._correction = min(1.0, self._correction + _CORRECTION_RETURN)
        is_full = observation.queue_wait >= _LEAST_WAIT * self._settings.slo_seconds
        is_refusing = observation.refused > _LEAST_REFUSED * offered
        if is_full and is_refusing and served > 0 and offered < reported * self._correction:
            shown = max(served / reported, _LEAST_CORRECTION)
            # A tenth of the way: one reading of refusals is noise.
            self._correction += min(0.0, (shown - self._correction) * _CORRECTION_GAIN)

    def _queue_factor(self, observation: Observation) -> float:
        """What requests that wait add to the needed capacity."""
        excess = observation.queue_wait / self._settings.slo_seconds - self._settings.wait_share
        return 1 + min(_MOST_FOR_QUEUE, max(0.0, excess))

    def _room(self, load: float) -> float:
        """Capacity that a removal leaves free: in a pool of a few workers, whose hysteresis is less than one worker,
        that of one worker. Otherwise noise adds and removes it again and again."""
        one = self._capacity * self._correction
        return max(load * self._settings.hysteresis, min(one, load * _MOST_ROOM))

    def _workers_for(self, now: float, later: float, observation: Observation) -> int:
        """Workers that take the load of ``now`` and, with those on standby, that of a start-up time ``later``."""
        # Workers leave in the order of the decision: the weakest ready ones last to be counted.
        ready = sorted(observation.ready, reverse=True)
        present = [each * self._correction for each in (*ready, *observation.pending)]
        spare = sum(observation.standby) * self._correction
        return max(self._count(now, present), self._count(later - spare, present))

    def _count(self, load: float, present: list[float]) -> int:
        """The number of workers, those of ``present`` first, whose capacities add up to the load."""
        for number, capacity in enumerate(present):
            if load <= _ROUNDING:
                return number
            load -= capacity
        if load <= _ROUNDING:
            return len(present)
        return len(present) + ceil(load / (self._capacity * self._correction) - _ROUNDING)

    def _remember(self, instant: float, needed: int) -> None:
        if self._observed_since is None:
            self._observed_since = instant
        window = self._needed
        while window and window[-1][1] <= needed:
            window.pop()
        window.append((instant, needed))
        while window[0][0] < instant - self._settings.down_seconds:
            window.popleft()

    def _lower(self, instant: float, current: int) -> int:
        """The lowest number that has sufficed for the whole window, no further than one step below ``current``."""
        settings = self._settings
        since = self._observed_since
        if since is None or instant - since < settings.down_seconds:
            return current
        if instant - self._removed_at < settings.down_seconds / 10:
            return current
        step = max(1, floor(current * settings.down_share))
        return min(current, max(self._needed[0][1], current - step))

    def _is_idle(self, instant: float) -> bool:
        after = self._settings.zero_after_seconds
        return after is not None and self._last_request is not None and instant - self._last_request >= after

    def _learn(self, observation: Observation, offered: float, expectation: Expectation) -> None:
        self._correct(observation, offered)
        self._prediction.take(observation.instant, offered, expectation)
        if self._forecast is not None and observation.time_of_day is not None:
            self._forecast.take(observation.time_of_day, offered)

    def _bounded(
        self, desired: int, reason: Reason, observation: Observation, inputs: Inputs, is_awake: bool = True
    ) -> Decision:
        """Bounds and the cost cap come last: nothing exceeds them."""
        settings = self._settings
        # A pool that may be empty stays so until a request wakes it.
        least = settings.min_workers if is_awake or settings.zero_after_seconds is None else 0
        if desired > settings.max_workers:
            desired, reason = settings.max_workers, Reason.MAXIMUM
        desired = max(desired, least)
        if settings.cost_cap is not None and observation.cost_per_worker > 0:
            others = len(observation.standby) + len(observation.draining)
            affordable = max(0, floor(settings.cost_cap / observation.cost_per_worker + _ROUNDING) - others)
            if desired > affordable:
                desired, reason = affordable, Reason.COST
        return Decision(desired, reason, inputs)

    def _inputs(
        self,
        observation: Observation,
        expected: float = 0.0,
        margin: float = 0.0,
        forecast: float = 0.0,
        needed: int = 0,
    ) -> Inputs:
        return Inputs(
            observation.offered,
            observation.refused,
            observation.queue_wait,
            expected,
            margin,
            forecast,
            self._capacity * self._correction,
            sum((*observation.ready, *observation.pending)) * self._correction,
            len(observation.ready),
            len(observation.pending),
            len(observation.standby),
            len(observation.draining),
            needed,
            observation.problem,
        )
