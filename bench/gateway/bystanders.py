"""CPU use of other processes during a measurement: figures from a busy machine are worth little.

Every bench of the gateway prints it at its start, and the hop run beside every figure. Must never hide a figure.
"""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
#: Runnable processes on average over the last minute, before anything was started.
_QUIET_LOAD = 0.5


def machine_cpu_seconds() -> float:
    """Time all cores together were busy so far, a hypervisor's share included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _io_wait, interrupt, soft_interrupt, steal = map(int, fields[:8])
    return (user + nice + system + interrupt + soft_interrupt + steal) / _TICKS


def warning() -> str:
    """The warning before a run on a machine that is not idle; empty if it is idle."""
    load = os.getloadavg()[0]
    if load <= _QUIET_LOAD:
        return ""
    return f"the machine is not idle (load average {load:.1f}): compare CPU per request, not requests/s or latencies"
