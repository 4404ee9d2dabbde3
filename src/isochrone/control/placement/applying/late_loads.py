"""Loads that hang: models that a worker should have, not ready for longer than their rollout may take. Pure.

A worker may load its models one after the other. So the time of all of them begins again whenever one becomes ready.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: A worker's name and incarnation.
Process = tuple[str, str]


class LateLoads:
    """As one leader sees them. ``now``: seconds of a monotonic clock."""

    def __init__(self) -> None:
        #: By process: the models that it had ready, and since when no other one has become ready.
        self._ready: dict[Process, tuple[frozenset[str], float]] = {}
        #: By process and model: since when it has been waited for.
        self._since: dict[tuple[Process, str], float] = {}

    def late(
        self,
        waiting: Mapping[Process, Collection[str]],
        ready: Mapping[Process, frozenset[str]],
        limits: Mapping[str, float],
        now: float,
    ) -> dict[str, frozenset[str]]:
        """By worker: models among those that are not ready, ``waiting``, whose load counts as failed. ``limits``: by
        model, in seconds. Of a process that is not named, nothing is known: its time begins again."""
        before, self._ready = self._ready, {}
        for process, models in ready.items():
            had, since = before.get(process, (models, now))
            self._ready[process] = (models, now if models - had else since)
        self._since = {
            (process, model): self._since.get((process, model), now)
            for process, models in waiting.items()
            for model in models
        }
        found: dict[str, set[str]] = {}
        for (process, model), since in self._since.items():
            _, progress = self._ready.get(process, (frozenset(), since))
            if now - max(since, progress) >= limits[model]:
                found.setdefault(process[0], set()).add(model)
        return {name: frozenset(models) for name, models in found.items()}
