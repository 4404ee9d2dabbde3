"""The machine: its description, which every results file contains, and real-time priority on it."""

import os
import platform
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def describe() -> dict[str, object]:
    """Processor, cores, memory, kernel and interpreter."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith(("model name", "CPU part"))
        ),
        "unknown",
    )
    return {
        "processor": model,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg(),
    }


def at_real_time_priority(level: int) -> bool:
    """Puts this process before all ordinary ones; processes that it starts later are ordinary. False: not permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(level))
    except OSError:
        return False
    return True
