"""How much CPU the rest of the machine used beside a measurement: a figure taken on a busy machine is worth little.

Every bench of the gateway says it at its start, and the hop run beside every figure. Must never hide a figure for it.
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
    """What to tell before a run on a machine that is not idle; empty when it is."""
    load = os.getloadavg()[0]
    if load <= _QUIET_LOAD:
        return ""
    return f"the machine is not idle (load average {load:.1f}): compare CPU per request, not requests/s or latencies"
