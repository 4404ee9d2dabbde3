"""A machine for tests of ``isochrone doctor``: /proc and /sys in a directory. A test adds what is to be found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from isochrone.doctor.facts import Facts, GpuFacts, LimitFacts
from isochrone.doctor.reading.machine import read_facts
from isochrone.doctor.reading.tree import Tree

CORE = "proc/sys/net/core"
IPV4 = "proc/sys/net/ipv4"
CPU = "sys/devices/system/cpu"
HUGE = "sys/kernel/mm/transparent_hugepage"
CLOCK = "sys/devices/system/clocksource/clocksource0"
CARD = "sys/class/net/eth0"

FILES = {
    f"{CORE}/somaxconn": "4096\n",
    f"{CORE}/busy_read": "50\n",
    f"{CORE}/busy_poll": "50\n",
    f"{IPV4}/tcp_fastopen": "3\n",
    f"{IPV4}/tcp_tw_reuse": "2\n",
    f"{IPV4}/tcp_slow_start_after_idle": "0\n",
    f"{IPV4}/ip_local_port_range": "32768\t60999\n",
    "proc/net/sockstat": "sockets: used 12\nTCP: inuse 1 orphan 0 tw 7 alloc 1 mem 64\nUDP: inuse 0 mem 0\n",
    "proc/net/netstat": "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 1 0\nIpExt: InOctets\nIpExt: 5\n",
    f"{CPU}/cpufreq/policy0/scaling_governor": "performance\n",
    f"{CPU}/cpufreq/policy1/scaling_governor": "performance\n",
    f"{CPU}/cpu0/cpuidle/state0/name": "POLL\n",
    f"{CPU}/cpu0/cpuidle/state0/latency": "0\n",
    f"{CPU}/cpu0/cpuidle/state0/disable": "0\n",
    f"{CPU}/cpu0/cpuidle/state1/name": "C6\n",
    f"{CPU}/cpu0/cpuidle/state1/latency": "133\n",
    f"{CPU}/cpu0/cpuidle/state1/disable": "1\n",
    "sys/devices/system/node/online": "0\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/interrupts": "   CPU0 CPU1 CPU2 CPU3\n 24: 9000 9000 9000 9000 PCI-MSI eth0-rx\nIPI0: 1 2 3 4 x\n",
    f"{CARD}/device/msi_irqs/24": "",
    f"{CARD}/queues/rx-0/rps_cpus": "0\n",
    f"{CARD}/queues/tx-0/xps_cpus": "0\n",
    f"{CLOCK}/current_clocksource": "tsc\n",
    f"{CLOCK}/available_clocksource": "tsc hpet acpi_pm\n",
    "proc/self/cgroup": "0::/pod/worker\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/pod/worker/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/worker/cpu.stat": "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    f"{HUGE}/enabled": "always [madvise] never\n",
    f"{HUGE}/defrag": "always defer defer+madvise [madvise] never\n",
    "proc/vmstat": "pswpin 0\npswpout 0\ncompact_stall 0\n",
    "proc/meminfo": "MemTotal: 8000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/fs/file-max": "9000000\n",
}


def build(root: Path, changed: dict[str, str] | None = None, missing: Iterable[str] = ()) -> Tree:
    """Write the machine; ``missing`` are paths, or directories with all that is below."""
    absent = tuple(missing)
    for path, text in {**FILES, **(changed or {})}.items():
        if not any(path == each or path.startswith(f"{each}/") for each in absent):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return Tree(root)


def facts_of(root: Path, changed: dict[str, str] | None = None, missing: Iterable[str] = ()) -> Facts:
    """The machine's facts. What belongs to the process and to its GPUs is the same on every machine."""
    facts = read_facts(build(root, changed, missing))
    return replace(
        facts,
        cpu=replace(facts.cpu, usable=frozenset(range(4))),
        limits=LimitFacts(1 << 20, facts.limits.open_files_machine, 1000),
        gpu=GpuFacts((), False),
    )
