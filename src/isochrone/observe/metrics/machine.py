"""Metrics of the machine, from Linux's /proc: processors and memory, under Triton's names.

Read at each scrape, never on a request's path. If /proc is missing or cannot be parsed, the metric is omitted, and the
scrape succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class MachineCollector(Collector):
    """Processor use since the last scrape (for the first, since construction), and current memory use."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last_times = self._processor_times()
        self._utilization = 0.0

    def collect(self) -> Iterator[Metric]:
        utilization = self._utilization_since_last()
        if utilization is not None:
            yield GaugeMetricFamily(
                "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0] since the last scrape", utilization
            )
        memory = self._memory()
        if memory is not None:
            total, used = memory
            yield GaugeMetricFamily("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total)
            yield GaugeMetricFamily("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used)

    def _utilization_since_last(self) -> float | None:
        times = self._processor_times()
        if times is None or self._last_times is None:
            self._last_times = times
            return None
        total = times[0] - self._last_times[0]
        busy = times[1] - self._last_times[1]
        # Two scrapes within one tick (10 ms) have no difference: repeat the last value.
        if total > 0:
            self._utilization = min(max(busy / total, 0.0), 1.0)
            self._last_times = times
        return self._utilization

    def _processor_times(self) -> tuple[int, int] | None:
        """(all, busy) ticks of all processors together since boot."""
        try:
            first_line = (self._proc / "stat").read_text().split("\n", 1)[0]
            # user nice system idle iowait irq softirq steal; guest times are part of user already (proc(5)).
            ticks = [int(field) for field in first_line.split()[1:9]]
            return sum(ticks), sum(ticks) - ticks[3] - ticks[4]
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> tuple[int, int] | None:
        """(total, used) bytes; memory that the kernel can reclaim immediately does not count as used."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            kilobytes = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
            total = kilobytes["MemTotal"] * 1024
            return total, total - kilobytes["MemAvailable"] * 1024
        except (OSError, ValueError, IndexError, KeyError):
            return None
