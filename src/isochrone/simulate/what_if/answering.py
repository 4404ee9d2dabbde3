"""The answer to a question: the fleet of today and the changed one, simulated side by side, and what differs.

The longer a simulation, the better its percentiles. Without a given length, both fleets are simulated in rounds, each
some times as long as the last, while there is time: the last round that was completed is the answer. The lengths of
rounds do not depend on the machine, so the length in an answer gives the same answer anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from isochrone.control.what_if.answers import ModelAnswer, WhatIfAnswer, WorkerAnswer
from isochrone.control.what_if.situation import Situation, check_size
from isochrone.errors import InvalidArgument, Unavailable
from isochrone.simulate.what_if.curves import batch_times, points_for
from isochrone.simulate.what_if.question import changed, parse_questions
from isochrone.simulate.what_if.simulation import OutOfTime, Simulation
from isochrone.simulate.what_if.verdict import judge, trust

#: Requests of the busier fleet in the first round; where its batches are long, at most; and at most in any run.
_FIRST_REQUESTS, _FIRST_AT_MOST, _MOST_REQUESTS = 1000, 4000, 400_000
#: Seconds of the first round, at least and at most; it is also so many times as long as the longest batch.
_LEAST_SECONDS, _FIRST_SECONDS, _BATCHES = 0.01, 60.0, 10
#: The first round may take so many times the budget, if no limit is given: without it there is no answer.
_PATIENCE = 1.6
#: How much longer a round may be than the one before, the largest step first, and the longest of all.
_STEPS = (8, 4, 2)
_MOST_SECONDS = 3600.0
#: A round may take so much longer than the last one suggests.
_MARGIN = 1.2


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that an answer may take. ``clock``: seconds, monotonic. ``most``: of the first round, or the only one;
    None: somewhat more than the budget."""

    clock: Callable[[], float]
    seconds: float
    most: float | None = None

    @property
    def longest(self) -> float:
        return _PATIENCE * self.seconds if self.most is None else self.most


def answer(
    situation: Situation, questions: Sequence[str], seed: int, seconds: float | None, budget: Budget
) -> WhatIfAnswer:
    """``seconds``: simulated ones; None: as many as the budget allows. Raises ``InvalidArgument`` for questions that
    the situation cannot have, and ``Unavailable`` if the budget does not suffice."""
    then = changed(situation, parse_questions(questions))
    check_size(then, "the changed fleet")
    if not situation.models:
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(situation.left_out.items())[:5])
        raise InvalidArgument(f"no model of the fleet can be simulated{f' ({reasons})' if reasons else ''}")
    begun = budget.clock()
    until, latest = begun + budget.seconds, begun + budget.longest
    rate = _highest_rate(situation, then)
    # All arrivals of a run are drawn before it starts, before any look at the clock.
    if rate * _LEAST_SECONDS > _MOST_REQUESTS:
        most = _MOST_REQUESTS / _LEAST_SECONDS
        raise InvalidArgument(f"load: expected at most {most:,.0f} requests/s of all models, given {rate:,.4g}")
    if seconds is not None:
        if not 0 < seconds <= _MOST_SECONDS or seconds * rate > _MOST_REQUESTS:
            longest = min(_MOST_SECONDS, _MOST_REQUESTS / rate) if rate else _MOST_SECONDS
            why = f" ({_MOST_REQUESTS} requests, {rate:,.4g} in a second)" if longest < _MOST_SECONDS else ""
            raise InvalidArgument(f"seconds: expected a length above 0 and up to {longest:g}{why}, given {seconds:g}")
        runs: tuple[Simulation, Simulation] | None
        runs = _made(situation, then, seed, seconds, partial(_is_after, budget.clock, latest))
        if not _run(runs):
            runs = None
    else:
        seconds, runs = _rounds(situation, then, seed, budget.clock, until, latest)
    if runs is None:
        allowed = budget.seconds if budget.most is None else budget.most
        raise Unavailable(
            f"the fleet was not simulated within {allowed:.3g} s: allow more time, or simulate fewer seconds"
        )
    return _answer(situation, then, questions, seed, seconds, *runs)


def _rounds(
    today: Situation, then: Situation, seed: int, clock: Callable[[], float], until: float, latest: float
) -> tuple[float, tuple[Simulation, Simulation] | None]:
    """The longest round that ends before ``until``, and its length; the first one may last until ``latest``."""
    seconds, done = _first_seconds(today, then), None
    while True:
        end = latest if done is None else until
        began = clock()
        runs = _made(today, then, seed, seconds, partial(_is_after, clock, end))
        made = clock()
        if not _run(runs):
            break
        done = seconds, runs
        setup, took, left = made - began, clock() - made, until - clock()
        rate = _highest_rate(today, then)
        fitting = [
            step
            for step in _STEPS
            if setup + step * took * _MARGIN < left
            and step * seconds <= _MOST_SECONDS
            and step * seconds * rate <= _MOST_REQUESTS
        ]
        if not fitting:
            break
        seconds *= fitting[0]
    return done or (seconds, None)


def _made(
    today: Situation, then: Situation, seed: int, seconds: float, is_over: Callable[[], bool]
) -> tuple[Simulation, Simulation]:
    return Simulation(today, seed, seconds, is_over), Simulation(then, seed, seconds, is_over)


def _run(runs: tuple[Simulation, Simulation]) -> bool:
    """False: it took too long."""
    try:
        for run in runs:
            run.run()
    except OutOfTime:
        return False
    return True


def _is_after(clock: Callable[[], float], instant: float) -> bool:
    return clock() > instant


def _first_seconds(today: Situation, then: Situation) -> float:
    rate = _highest_rate(today, then)
    longest = max((_longest_batch(situation) for situation in (today, then)), default=0.0)
    seconds = max(_FIRST_REQUESTS / rate if rate else 1.0, _BATCHES * longest)
    # Not so many requests that the first round alone takes all the time.
    seconds = min(seconds, _FIRST_AT_MOST / rate if rate else seconds, _FIRST_SECONDS)
    return float(f"{max(seconds, _LEAST_SECONDS):.2g}")


def _highest_rate(*situations: Situation) -> float:
    return max(sum(model.rate for model in situation.models) for situation in situations)


def _longest_batch(situation: Situation) -> float:
    """Seconds of the longest run that a worker may have."""
    models = {model.name: model for model in situation.models}
    longest = 0.0
    for name, device, speed in {
        (name, worker.device, worker.speeds.get(name, 1.0)) for worker in situation.workers for name in worker.models
    }:
        model = models[name]
        times = batch_times(points_for(model.curves, device), model.max_rows)
        longest = max(longest, times[-1] / speed / 1e9)
    return longest


def _answer(
    situation: Situation,
    changed_situation: Situation,
    questions: Sequence[str],
    seed: int,
    seconds: float,
    today: Simulation,
    then: Simulation,
) -> WhatIfAnswer:
    models = tuple(
        ModelAnswer(
            model.name, model.deadline_ms, today.of_model(model.name), then.of_model(model.name), model.measured
        )
        for model in situation.models
    )
    pools = {worker.name: worker.pool for worker in (*situation.workers, *changed_situation.workers)}
    workers = tuple(
        WorkerAnswer(
            name,
            pool,
            today.of_worker(name) if name in today.workers else None,
            then.of_worker(name) if name in then.workers else None,
        )
        for name, pool in pools.items()
    )
    verdict, sentences = judge(models, workers, changed_situation)
    return WhatIfAnswer(
        tuple(questions),
        verdict,
        sentences,
        trust(models),
        models,
        workers,
        situation.left_out,
        situation.assumptions,
        seed,
        seconds,
        today.requests + then.requests,
        situation.measured_seconds,
    )
