"""All facts of the machine."""

from __future__ import annotations

import ctypes
import os
import resource

from isochrone.doctor.facts import Facts, LimitFacts, MemoryFacts, NetworkFacts, Unknown
from isochrone.doctor.reading.cpu import read_cpu
from isochrone.doctor.reading.gpu import read_gpu
from isochrone.doctor.reading.parsing import chosen, line_counter, number, port_range, table_counter, time_wait
from isochrone.doctor.reading.tree import Tree

#: prctl(2), linux/prctl.h
_PR_GET_TIMERSLACK = 30


def read_facts(tree: Tree) -> Facts:
    return Facts(read_network(tree), read_cpu(tree), read_memory(tree), read_limits(tree), read_gpu(tree))


def read_network(tree: Tree) -> NetworkFacts:
    ipv4 = "proc/sys/net/ipv4"
    return NetworkFacts(
        somaxconn=tree.value("proc/sys/net/core/somaxconn", number),
        tcp_fastopen=tree.value(f"{ipv4}/tcp_fastopen", number),
        tcp_tw_reuse=tree.value(f"{ipv4}/tcp_tw_reuse", number),
        tcp_slow_start_after_idle=tree.value(f"{ipv4}/tcp_slow_start_after_idle", number),
        local_ports=tree.value(f"{ipv4}/ip_local_port_range", port_range),
        time_wait=tree.value("proc/net/sockstat", time_wait),
        busy_read=tree.value("proc/sys/net/core/busy_read", number),
        busy_poll=tree.value("proc/sys/net/core/busy_poll", number),
        listen_overflows=tree.value("proc/net/netstat", lambda text: table_counter(text, "TcpExt", "ListenOverflows")),
    )


def read_memory(tree: Tree) -> MemoryFacts:
    huge = "sys/kernel/mm/transparent_hugepage"
    return MemoryFacts(
        huge_pages=tree.value(f"{huge}/enabled", chosen),
        huge_page_defrag=tree.value(f"{huge}/defrag", chosen),
        compaction_stalls=tree.value("proc/vmstat", lambda text: line_counter(text, "compact_stall")),
        swap_total_kib=tree.value("proc/meminfo", lambda text: line_counter(text, "SwapTotal")),
        swap_free_kib=tree.value("proc/meminfo", lambda text: line_counter(text, "SwapFree")),
        swappiness=tree.value("proc/sys/vm/swappiness", number),
        swapped_in=tree.value("proc/vmstat", lambda text: line_counter(text, "pswpin")),
    )


def read_limits(tree: Tree) -> LimitFacts:
    return LimitFacts(
        # Servers raise their own soft limit to the hard one when they start.
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        open_files_machine=tree.value("proc/sys/fs/file-max", number),
        timer_slack_ns=_timer_slack(),
    )


def _timer_slack() -> int | Unknown:
    slack = ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    return slack if slack >= 0 else Unknown(f"prctl(PR_GET_TIMERSLACK): {os.strerror(ctypes.get_errno())}")
