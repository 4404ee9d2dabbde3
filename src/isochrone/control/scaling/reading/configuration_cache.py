"""The configurations of the model versions of one pool, and which of them to ask which worker for. Pure.

The workers of a pool have the same models, so one answer counts for all of them. It is forgotten when a worker restarts
or loads the version again: its configuration may be another one then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from isochrone.control.scaling.reading.fleet_counters import ModelConfiguration, WorkerStatistics

#: Configurations that are asked of one worker in one reading; the others follow with the next ones.
_AT_ONCE = 32

#: A model and its version.
Key = tuple[str, str]


class ConfigurationCache:
    """State of one pool."""

    def __init__(self) -> None:
        self.known: dict[Key, ModelConfiguration] = {}
        #: By worker: its last statistics.
        self._last: dict[str, WorkerStatistics] = {}
        #: How often a configuration was asked for without an answer: the others are asked for first.
        self._failed: dict[Key, int] = {}
        #: Of this reading, by version without a configuration: its executions since the last reading, and the workers
        #: that have it.
        self._unknown: dict[Key, tuple[int, list[str]]] = {}

    def keep(self, workers: Collection[str]) -> None:
        """Begin a reading of these workers."""
        self._last = {name: last for name, last in self._last.items() if name in workers}
        self._unknown = {}

    def take(self, worker: str, statistics: WorkerStatistics) -> None:
        """The statistics of one worker in this reading."""
        last, self._last[worker] = self._last.get(worker), statistics
        has_restarted = last is not None and last.incarnation != statistics.incarnation
        for model, versions in statistics.models.items():
            before = last.models.get(model, {}) if last is not None else {}
            for version, now in versions.items():
                key, earlier = (model, version), before.get(version)
                is_new = has_restarted or (earlier is not None and now.successes < earlier.successes)
                if is_new:
                    self.known.pop(key, None)
                if key in self.known or not now.batches:
                    continue
                number, holders = self._unknown.get(key, (0, []))
                number += now.executions - (earlier.executions if earlier is not None and not is_new else 0)
                # The process that has just loaded the version is asked.
                self._unknown[key] = number, [worker, *holders] if is_new else [*holders, worker]

    def questions(self) -> Iterator[tuple[str, Key]]:
        """(worker, version) for each configuration to ask for: the busiest versions first."""
        asked: dict[str, int] = {}
        for key, (_, holders) in sorted(
            self._unknown.items(), key=lambda each: (self._failed.get(each[0], 0), -each[1][0], each[0])
        ):
            free = [worker for worker in holders if asked.get(worker, 0) < _AT_ONCE]
            if free:
                asked[free[0]] = asked.get(free[0], 0) + 1
                yield free[0], key

    def answer(self, key: Key, configuration: ModelConfiguration | None) -> None:
        """None: the worker did not say."""
        if configuration is None:
            self._failed[key] = self._failed.get(key, 0) + 1
        else:
            self.known[key] = configuration
            self._failed.pop(key, None)

    def complete(self, statistics: WorkerStatistics) -> WorkerStatistics:
        """The same statistics with the configurations that were asked for in this reading."""
        models = dict(statistics.models)
        for model, version in self._unknown:
            each = models.get(model, {}).get(version)
            if each is not None:
                changed = each._replace(configuration=self.known.get((model, version)))
                models[model] = {**models[model], version: changed}
        return WorkerStatistics(statistics.incarnation, models, statistics.instant, statistics.in_flight)
