"""What the figures of an answer mean, in sentences. Pure.

A difference counts if it is larger than what two simulations of the same fleet differ by.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.control.what_if.answers import BREAKS, HOLDS, WORSE, ModelAnswer, ModelOutcome, WorkerAnswer
from isochrone.control.what_if.situation import Situation, SituationModel
from isochrone.simulate.what_if.curves import batch_times, points_for

#: A share of lost requests that breaks a model, and one that is worse than today's.
_BREAKING, _WORSE_SHARE = 0.05, 0.002
#: A p99 is worse if it is so many times today's, and so many ms longer.
_WORSE_RATIO, _WORSE_MS = 1.25, 0.5
#: Simulated and measured percentiles that differ by less agree.
_AGREE = 0.25
#: Workers above this have no room.
_FULL = 0.9
#: Models that are named one by one.
_NAMED = 10


def judge(
    models: Sequence[ModelAnswer], workers: Sequence[WorkerAnswer], then: Situation
) -> tuple[str, tuple[str, ...]]:
    """The verdict, and its sentences, the worst first."""
    settings = {model.name: model for model in then.models}
    found = [_judge_model(each, settings[each.name], then) for each in models]
    verdict = next((kind for kind in (BREAKS, WORSE) if any(each[0] == kind for each in found)), HOLDS)
    order = {BREAKS: 0, WORSE: 1, HOLDS: 2}
    sentences = [sentence for _, sentence in sorted(found, key=lambda each: order[each[0]])]
    shown = sentences[:_NAMED]
    if len(sentences) > _NAMED:
        shown.append(f"{len(sentences) - _NAMED} more models do no worse than these")
    return verdict, (*shown, *_busiest(workers))


def _judge_model(model: ModelAnswer, settings: SituationModel, then: Situation) -> tuple[str, str]:
    name, before, after = model.name, model.today, model.then
    if not after.workers:
        return BREAKS, f"{name}: no worker serves it any more, so all of its requests fail"
    lost_before, lost = _lost(before), _lost(after)
    capacity = capacity_of(settings, then)
    slower = f"p99 goes from {_ms(before.p99_ms)} to {_ms(after.p99_ms)}"
    if after.rate > capacity:
        text = (
            f"{name}: {after.rate:,.0f} requests/s are more than the {capacity:,.0f} that its workers can do; "
            f"{_lost_text(after) if lost > _WORSE_SHARE else 'its queues grow without end'}"
        )
        # Without a deadline nothing is lost: the latency grows for as long as the load lasts.
        return BREAKS, text
    if lost >= max(_BREAKING, 2 * lost_before):
        return BREAKS, f"{name}: {_lost_text(after)} (today {lost_before:.1%}); {slower}"
    if lost > lost_before + _WORSE_SHARE:
        return WORSE, f"{name}: {_lost_text(after)} (today {lost_before:.1%}); {slower}"
    if after.p99_ms > _WORSE_RATIO * before.p99_ms and after.p99_ms > before.p99_ms + _WORSE_MS:
        deadline = f", within its deadline of {_ms(model.deadline_ms)}" if model.deadline_ms else ""
        return WORSE, f"{name}: {slower}{deadline}"
    if before.p99_ms > _WORSE_RATIO * after.p99_ms and before.p99_ms > after.p99_ms + _WORSE_MS:
        return HOLDS, f"{name}: {slower}"
    return HOLDS, f"{name}: as today (p99 {_ms(after.p99_ms)})"


def capacity_of(model: SituationModel, situation: Situation) -> float:
    """Requests per second that the workers of a model can do with full batches, if none of them does anything else."""
    total = 0.0
    rows = min(model.rows, model.max_rows)
    for worker in situation.workers:
        if model.name in worker.models:
            times = batch_times(points_for(model.curves, worker.device), model.max_rows)
            best = max(size / times[size] for size in range(1, model.max_rows + 1))
            total += model.instances * worker.speeds.get(model.name, 1.0) * best * 1e9 / rows
    return total


def _lost(outcome: ModelOutcome) -> float:
    return outcome.missed + outcome.rejected + outcome.failed


def _lost_text(outcome: ModelOutcome) -> str:
    parts = [
        f"{share:.1%} {what}"
        for share, what in (
            (outcome.missed, "miss their deadlines"),
            (outcome.rejected, "are rejected because they could not be in time"),
            (outcome.failed, "fail"),
        )
        if share >= 0.0005
    ]
    return "of its requests " + " and ".join(parts) if parts else "no request is lost"


def _busiest(workers: Sequence[WorkerAnswer]) -> tuple[str, ...]:
    there = [worker for worker in workers if worker.then is not None]
    if not there:
        return ("no worker is left",)
    busiest = max(there, key=lambda worker: worker.then.utilisation if worker.then is not None else 0.0)
    assert busiest.then is not None
    before = max((worker.today.utilisation for worker in workers if worker.today is not None), default=0.0)
    room = "there is no room left" if busiest.then.utilisation >= _FULL else "there is room"
    return (
        f"the busiest worker, {busiest.name}, is busy {busiest.then.utilisation:.0%} of the time "
        f"(today's busiest {before:.0%}): {room}",
    )


def trust(models: Sequence[ModelAnswer]) -> tuple[str, ...]:
    """How near the simulation of today comes to what was measured."""
    found = []
    for model in models[:_NAMED]:
        measured = model.measured
        if measured is None or not measured.p50_ms:
            found.append(f"{model.name}: nothing was measured to compare the simulation with")
            continue
        pairs = (("p50", model.today.p50_ms, measured.p50_ms), ("p99", model.today.p99_ms, measured.p99_ms))
        texts = [f"{name} {_ms(simulated)} simulated, {_ms(real)} measured" for name, simulated, real in pairs]
        agrees = all(abs(simulated - real) <= _AGREE * real for _, simulated, real in pairs)
        advice = "they agree" if agrees else "take the change as a trend, not the figures"
        found.append(f"{model.name}: {'; '.join(texts)}: {advice}")
    return tuple(found)


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"
