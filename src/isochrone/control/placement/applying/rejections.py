"""Models that workers could not load and gave up, so that they are not tried at once again. Pure.

A worker forgets a failure with the load that caused it. Without a memory of it, a model that cannot be loaded would
take the place of one that can, again and again.
"""

from __future__ import annotations

from collections.abc import Collection

#: Seconds before a model is tried again on a worker that gave it up: the first pause, which doubles, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 1800.0

#: A worker's name and incarnation, a model and its committed version.
Attempt = tuple[str, str, str, str]


class Rejections:
    """As one leader sees them. ``now``: seconds of a monotonic clock."""

    def __init__(self) -> None:
        #: When the model may be tried again, and the length of that pause.
        self._pauses: dict[Attempt, tuple[float, float]] = {}

    def give_up(self, attempt: Attempt, now: float) -> None:
        _, pause = self._pauses.get(attempt, (0.0, FIRST_PAUSE / 2))
        pause = min(LONGEST_PAUSE, 2 * pause)
        self._pauses[attempt] = (now + pause, pause)

    def keep_only(self, attempts: Collection[Attempt]) -> None:
        """Forget what another process or another version makes obsolete."""
        self._pauses = {attempt: pause for attempt, pause in self._pauses.items() if attempt in attempts}

    def rejected(self, now: float) -> dict[str, frozenset[str]]:
        """By worker: the models that it is not given yet."""
        found: dict[str, set[str]] = {}
        for (worker, _, model, _), (until, _) in self._pauses.items():
            if now < until:
                found.setdefault(worker, set()).add(model)
        return {worker: frozenset(models) for worker, models in found.items()}
