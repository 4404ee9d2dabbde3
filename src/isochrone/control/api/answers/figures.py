"""The figures of the fleet as answers: the latest second in full, and the frames of a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.control.api.messages import (
    FigureFrame,
    FiguresAnswer,
    GatewayFigure,
    ModelFigure,
    WorkerFigure,
)
from isochrone.control.figures.frames import Frame, GatewayFigures, ModelFigures, WorkerFigures, bucket_bounds_ns

#: Percentiles of an answer.
_SHARES = (0.5, 0.95, 0.99)


def figures_answer(latest: Frame | None, frames: Sequence[Frame], since: int | None, model: str = "") -> FiguresAnswer:
    """``model`` "": all models. Only the latest frame has workers, stages and the distribution of durations."""
    return FiguresAnswer(
        since or 0,
        _frame(latest, model, whole=True) if latest is not None else None,
        tuple(_frame(frame, model, whole=False) for frame in frames),
    )


def _frame(frame: Frame, model: str, *, whole: bool) -> FigureFrame:
    models = [each for (name, _), each in sorted(frame.models.items()) if not model or name == model]
    workers = [_worker(each) for each in frame.workers.values()] if whole else []
    gateways = [_gateway(each) for each in frame.gateways.values()]
    return FigureFrame(
        frame.at, frame.seconds, tuple(_model(each, whole=whole) for each in models), tuple(workers), tuple(gateways)
    )


def _model(figures: ModelFigures, *, whole: bool) -> ModelFigure:
    p50, p95, p99 = (figures.percentile_ns(share) / 1e6 for share in _SHARES)
    durations = []
    for bucket in sorted(figures.durations) if whole else ():
        bound = bucket_bounds_ns(bucket)[1]
        durations.append((None if bound is None else bound / 1e6, figures.durations[bucket]))
    return ModelFigure(
        figures.model,
        figures.version,
        figures.answered,
        figures.rejected,
        figures.deadline_exceeded,
        figures.failed,
        figures.cancelled,
        figures.mean_ns / 1e6,
        p50,
        p95,
        p99,
        {stage: each.mean_ns / 1e6 for stage, each in figures.stages.items()} if whole else {},
        tuple(durations),
    )


def _worker(figures: WorkerFigures) -> WorkerFigure:
    return WorkerFigure(
        figures.name,
        figures.tier,
        figures.in_flight,
        figures.queued,
        figures.wait_ns / 1e6,
        figures.is_healthy,
        figures.is_ejected,
        figures.is_draining,
        figures.is_standby,
        None if figures.round_trip_s is None else figures.round_trip_s * 1000,
    )


def _gateway(figures: GatewayFigures) -> GatewayFigure:
    return GatewayFigure(
        figures.name,
        figures.is_reachable,
        figures.requests,
        figures.retries,
        figures.hedges,
        figures.in_flight,
        figures.own.mean_ns / 1e6,
    )
