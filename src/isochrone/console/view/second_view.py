"""What changes every second: loads of workers, gateways' and models' figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from isochrone.console.view.comparisons import VersionComparison, version_comparisons
from isochrone.console.view.latencies import LatencyWaterfall, Percentiles, percentiles, waterfall
from isochrone.console.view.loads import WorkerLoad, load_of
from isochrone.console.view.quantities import milliseconds, rounded
from isochrone.control.figures.frames import Frame, GatewayFigures, ModelFigures, merged_models
from isochrone.control.figures.history import History
from isochrone.control.state.rollout_records import RolloutRecord

#: Seconds over which figures that are read as numbers are taken: those of one second jump too much.
SECONDS: Final = 10
#: The model of a sum over all.
ALL: Final = ""


@dataclass(frozen=True, slots=True)
class GatewaySecond:
    rate: float
    in_flight: int
    retries: int
    hedges: int
    #: Its own share of a request.
    own_ms: float
    is_reachable: bool


@dataclass(frozen=True, slots=True)
class ModelSecond:
    """``shown``: over ``SECONDS``. ``point`` and ``heat``: of the last second, to be added to a history."""

    shown: Percentiles
    waterfall: LatencyWaterfall
    point: Percentiles
    #: Answered requests by bucket of duration.
    heat: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SecondView:
    #: Unix second of the figures; 0: there are none yet.
    at: int
    workers: Mapping[str, WorkerLoad]
    gateways: Mapping[str, GatewaySecond]
    #: By name; ``ALL``: together.
    models: Mapping[str, ModelSecond]
    comparisons: tuple[VersionComparison, ...] = ()


def second_view(
    history: History,
    deadlines_ms: Mapping[str, float],
    worker_deadlines_ms: Mapping[str, float],
    rollouts: Sequence[RolloutRecord] = (),
) -> SecondView:
    """``deadlines_ms``: by model. ``worker_deadlines_ms``: by worker, the shortest of its models."""
    frame = history.latest()
    if frame is None:
        return SecondView(0, {}, {}, {})
    recent = history.frames(SECONDS)
    return SecondView(
        frame.at,
        {name: load_of(each, round(worker_deadlines_ms.get(name, 0.0) * 1e6)) for name, each in frame.workers.items()},
        {name: _gateway(each, recent, name) for name, each in frame.gateways.items()},
        _models(frame, recent, deadlines_ms),
        version_comparisons(rollouts, history),
    )


def _gateway(gateway: GatewayFigures, recent: Sequence[Frame], name: str) -> GatewaySecond:
    past = [frame.gateways[name] for frame in recent if name in frame.gateways]
    return GatewaySecond(
        rounded(sum(each.requests for each in past) / max(1, len(past))),
        gateway.in_flight,
        sum(each.retries for each in past),
        sum(each.hedges for each in past),
        milliseconds(gateway.own.mean_ns),
        gateway.is_reachable,
    )


def _models(frame: Frame, recent: Sequence[Frame], deadlines_ms: Mapping[str, float]) -> dict[str, ModelSecond]:
    seconds = max(1, len(recent))
    # Grouped once: a search for each model would take the square of their number.
    past, latest = _by_model(recent), _by_model((frame,))
    found: dict[str, ModelSecond] = {}
    lasts, windows = [], []
    for name in sorted(past):
        last = merged_models(name, latest.get(name, ()))
        window = merged_models(name, past[name])
        lasts.append(last)
        windows.append(window)
        found[name] = ModelSecond(
            percentiles(window, seconds),
            waterfall(window, deadlines_ms.get(name, 0.0)),
            percentiles(last, 1),
            last.durations,
        )
    total, all_last = merged_models(ALL, windows), merged_models(ALL, lasts)
    found[ALL] = ModelSecond(
        percentiles(total, seconds), waterfall(total, 0.0), percentiles(all_last, 1), all_last.durations
    )
    return found


def _by_model(frames: Sequence[Frame]) -> dict[str, list[ModelFigures]]:
    found: dict[str, list[ModelFigures]] = {}
    for frame in frames:
        for (model, _), each in frame.models.items():
            found.setdefault(model, []).append(each)
    return found
