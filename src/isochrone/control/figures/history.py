"""A short history of frames in fixed memory: seconds for 5 minutes, ten seconds for an hour, minutes for a day. Pure.

Two limits hold, whatever a fleet sends: of models with figures of their own in a frame, and of figures in each ring. A
fleet with more of them has a shorter history, never a larger one.
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

    def __init__(self, most_models: int = 128, most_figures: int = 16_000, most_workers: int = 30_000) -> None:
        """``most_models``: (model, version) pairs with figures of their own. ``most_figures``: of models in each ring;
        ``most_workers``: of workers in all frames."""
        self._most_models = most_models
        self._most_workers = most_workers
        self._rings = [_Ring(length, kept, most_figures) for length, kept in RINGS]
        #: (model, version) that have figures of their own, and when they last had a request.
        self._places: dict[ModelKey, int] = {}
        self._latest: Frame | None = None
        #: The second of the first frame ever.
        self._first = 0

    def add(self, frame: Frame) -> None:
        """Take the frame of one second."""
        if self._latest is not None and frame.at <= self._latest.at:
            return
        if self._latest is None:
            self._first = frame.at
        frame = self._bounded(frame)
        self._latest = frame
        for ring in self._rings:
            ring.add(frame)
        self._rings[0].drop_workers(self._most_workers)

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

    def window(self, model: str, version: str | None, seconds: int) -> ModelFigures:
        """One version, or all of a model's (None), over the last ``seconds``."""
        figures = (frame.model(model, version) for frame in self.frames(seconds))
        return merged_models(model, figures, version)

    def models(self, seconds: int = 300) -> list[ModelKey]:
        """(model, version) with requests in the last ``seconds``, by name. ``OTHER_MODELS``: those without a place."""
        return sorted({key for frame in self.frames(seconds) for key in frame.models})

    def _bounded(self, frame: Frame) -> Frame:
        """At most ``most_models`` figures; the others are one."""
        models: dict[ModelKey, ModelFigures] = {}
        others: list[ModelFigures] = []
        for key, each in frame.models.items():
            if self._has_place(key, frame.at):
                models[key] = each
            else:
                others.append(each)
        if others:
            models[OTHER_MODELS, ""] = merged_models(OTHER_MODELS, others)
        return replace(frame, models=models)

    def _has_place(self, key: ModelKey, now: int) -> bool:
        if key not in self._places and len(self._places) >= self._most_models:
            self._places = {known: seen for known, seen in self._places.items() if now - seen < _FORGET}
            if len(self._places) >= self._most_models:
                return False
        self._places[key] = now
        return True


class _Ring:
    """Frames of one length. The last one grows until its seconds are over."""

    def __init__(self, length: int, kept: int, most_figures: int) -> None:
        self._length = length
        self.kept = kept
        self._most_figures = most_figures
        self._frames: deque[Frame] = deque()
        #: Figures of models, and of workers, in all frames.
        self._figures = 0
        self._workers = 0

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
        while len(frames) > 1 and (frames[0].at <= start - self.kept or self._figures > self._most_figures):
            gone = frames.popleft()
            self._figures -= len(gone.models)
            self._workers -= len(gone.workers)

    def drop_workers(self, most: int) -> None:
        """Keep the workers of the newest frames alone, at most so many; those of the last frame in any case."""
        if self._workers <= most:
            return
        for index in range(len(self._frames) - 1):
            frame = self._frames[index]
            if frame.workers:
                self._workers -= len(frame.workers)
                self._frames[index] = replace(frame, workers={})
                if self._workers <= most:
                    return

    def last(self, seconds: int) -> Sequence[Frame]:
        if not self._frames:
            return ()
        newest = self._frames[-1]
        start = newest.at + self._length - seconds
        return [frame for frame in self._frames if frame.at >= start]
