"""The metrics of the group itself: how many processes are ready, restarts, and the memory they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isochrone.multiprocess.group.sharing import Memory

_MEMORY = (
    ("rss", "Resident memory of a process; shared pages count in full"),
    ("pss", "Resident memory of a process; a page that n processes share counts as 1/n"),
    ("shared", "Resident memory of a process that another process maps, too"),
)


class GroupCollector(Collector):
    """One scrape; the figures are by the numbers of the processes."""

    def __init__(self, count: int, ready: int, restarts: Mapping[int, int], memory: Mapping[int, Memory]) -> None:
        self._count = count
        self._ready = ready
        self._restarts = restarts
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("isochrone_processes", "Serving processes of this server", self._count)
        yield GaugeMetricFamily("isochrone_processes_ready", "Serving processes that are ready", self._ready)
        restarts = CounterMetricFamily(
            "isochrone_process_restarts", "How often a process was started again", labels=("process",)
        )
        for number, value in self._restarts.items():
            restarts.add_metric((str(number),), value)
        yield restarts
        for name, text in _MEMORY:
            family = GaugeMetricFamily(f"isochrone_process_memory_{name}_bytes", text, labels=("process",))
            for number, memory in self._memory.items():
                family.add_metric((str(number),), getattr(memory, name))
            yield family
