"""A short history of frames in fixed memory: seconds for 5 minutes, ten seconds for an hour, minutes for a day. Pure.

Limits hold, whatever a fleet sends: of models with figures of their own in a frame, of figures in each ring, of workers
and of gateways in all frames. A fleet with more of them has a shorter history, never a larger one.

Error budgets have a ring of their own, by model without versions, in which many more models have a place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from isochrone.control.figures.frames import (
    OTHER_MODELS,
    Frame,
    ModelFigures,
    ModelKey,
    merged_frames,
    merged_models,
)

#: (seconds of a frame, seconds that are kept) of each ring, the finest first.
RINGS: Final = ((1, 300), (10, 3_600), (60, 86_400))
#: Seconds without a request after which a model's place may go to another.
_FORGET: Final = 300


class History:
    """The frames of one fleet. Frames come in the order of time; one that is not later than the last is left out."""

    def __init__(
        self,
        most_models: int = 128,
        most_figures: int = 16_000,
        most_workers: int = 30_000,
        *,
        most_names: int = 4_096,
    ) -> None:
        """``most_models``: (model, version) pairs with figures of their own. ``most_figures``: of models in each ring;
        ``most_workers``: of workers in all frames, and of gateways. ``most_names``: of models with budgets."""
        self._most_workers = most_workers
        self._rings = [_Ring(length, kept, most_figures) for length, kept in RINGS]
        self._budgets = _Ring(*RINGS[-1], most_figures)
        self._versions, self._names = _Places(most_models), _Places(most_names)
        self._latest: Frame | None = None
        #: The second of the first frame ever.
        self._first = 0

    def add(self, frame: Frame) -> None:
        """Take the frame of one second."""
        if self._latest is not None and frame.at <= self._latest.at:
            return
        if self._latest is None:
            self._first = frame.at
        self._budgets.add(self._names.bounded(_by_model(frame)))
        frame = self._versions.bounded(frame)
        self._latest = frame
        for ring in self._rings:
            ring.add(frame)
        self._rings[0].drop_processes(self._most_workers)

    def latest(self) -> Frame | None:
        """The newest frame of a second; None: there is none yet."""
        return self._latest

    @property
    def since(self) -> int | None:
        """The unix second at which the history begins; None: it is empty."""
        starts = [start for ring in self._rings if (start := ring.since) is not None]
        # Longer frames begin at full minutes, even if nobody looked yet.
        return max(min(starts), self._first) if starts else None

    def frames(self, seconds: int) -> Sequence[Frame]:
        """The frames of the last ``seconds``, the oldest first, as fine as the history has them for so long.

        They are a second long up to 5 minutes, 10 seconds up to an hour, else a minute. The last may not be full yet.
        """
        ring = next((ring for ring in self._rings if seconds <= ring.kept), self._rings[-1])
        return ring.last(seconds)

    def budget_frames(self) -> Sequence[Frame]:
        """The minutes of up to a day, the oldest first: outcomes and durations of each model, under version ""."""
        return self._budgets.last(self._budgets.kept)

    def window(self, model: str, version: str | None, seconds: int) -> ModelFigures:
        """One version, or all of a model's (None), over the last ``seconds``."""
        figures = (frame.model(model, version) for frame in self.frames(seconds))
        return merged_models(model, figures, version)

    def models(self, seconds: int = 300) -> list[ModelKey]:
        """(model, version) with requests in the last ``seconds``, by name. ``OTHER_MODELS``: those without a place."""
        return sorted({key for frame in self.frames(seconds) for key in frame.models})


def _by_model(frame: Frame) -> Frame:
    """What error budgets are made of: outcomes and durations of each model."""
    models = {}
    for name, versions in frame.by_name().items():
        each = versions[0] if len(versions) == 1 else merged_models(name, versions)
        outcomes = each.answered, each.rejected, each.deadline_exceeded, each.failed, each.cancelled, each.excused
        models[name, ""] = ModelFigures(name, "", *outcomes, each.durations)
    return Frame(frame.at, models, is_whole=frame.is_whole)


class _Places:
    """The models that have figures of their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: When each last had a request.
        self._seen: dict[ModelKey, int] = {}

    def bounded(self, frame: Frame) -> Frame:
        """At most so many figures; the others are one."""
        models: dict[ModelKey, ModelFigures] = {}
        others: list[ModelFigures] = []
        for key, each in frame.models.items():
            if self._has(key, frame.at):
                models[key] = each
            else:
                others.append(each)
        if not others:
            return frame
        models[OTHER_MODELS, ""] = merged_models(OTHER_MODELS, others)
        return replace(frame, models=models, is_whole=False)

    def _has(self, key: ModelKey, now: int) -> bool:
        if key not in self._seen and len(self._seen) >= self._most:
            self._seen = {known: seen for known, seen in self._seen.items() if now - seen < _FORGET}
            if len(self._seen) >= self._most:
                return False
        self._seen[key] = now
        return True


class _Ring:
    """Frames of one length. The last one grows until its seconds are over."""

    def __init__(self, length: int, kept: int, most_figures: int) -> None:
        self._length = length
        self.kept = kept
        self._most_figures = most_figures
        self._frames: deque[Frame] = deque()
        #: Figures of models, of workers and of gateways, in all frames.
        self._figures = 0
        self._workers = 0
        self._gateways = 0

    @property
    def since(self) -> int | None:
        return self._frames[0].at if self._frames else None

    def add(self, frame: Frame) -> None:
        start = frame.at - frame.at % self._length
        frames = self._frames
        if frames and frames[-1].at == start:
            last = frames.pop()
            self._figures -= len(last.models)
            frame = merged_frames((last, frame), start, self._length)
        elif self._length > 1:
            frame = merged_frames((frame,), start, self._length)
        frames.append(frame)
        self._figures += len(frame.models)
        self._workers += len(frame.workers)
        self._gateways += len(frame.gateways)
        while len(frames) > 1 and (frames[0].at <= start - self.kept or self._figures > self._most_figures):
            gone = frames.popleft()
            self._figures -= len(gone.models)
            self._workers -= len(gone.workers)
            self._gateways -= len(gone.gateways)

    def drop_processes(self, most: int) -> None:
        """Keep the workers, and the gateways, of the newest frames alone, at most so many of each; those of the last
        frame in any case."""
        for index in range(len(self._frames) - 1):
            if self._workers <= most and self._gateways <= most:
                return
            frame = self._frames[index]
            if frame.workers and self._workers > most:
                self._workers -= len(frame.workers)
                frame = replace(frame, workers={})
            if frame.gateways and self._gateways > most:
                self._gateways -= len(frame.gateways)
                frame = replace(frame, gateways={})
            self._frames[index] = frame

    def last(self, seconds: int) -> Sequence[Frame]:
        if not self._frames:
            return ()
        newest = self._frames[-1]
        start = newest.at + self._length - seconds
        return [frame for frame in self._frames if frame.at >= start]
