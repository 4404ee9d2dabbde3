"""Checks of TCP: accept queues, ports, first requests of connections, busy polling."""

from __future__ import annotations

from isochrone.doctor.checks.check import IP_SYSCTL, KERNEL, NET_SYSCTL, Check, compared, unknown
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Change, Finding, Severity
from isochrone.settings.wire_limits import LISTEN_BACKLOG

_IPV4 = "proc/sys/net/ipv4"
_CORE = "proc/sys/net/core"
_COUNTERS = f"{KERNEL}/networking/snmp_counter.html"
#: Client (1) and server (2) side of TCP fast open.
_FAST_OPEN = 3
#: Sockets in TIME_WAIT, as a share of the ports, from which new connections may soon find none.
_MANY_WAITING = 0.5
#: Fewer ports than this are a narrowed range: the kernel's default has 28,232.
_FEW_PORTS = 16_384


def somaxconn(facts: Facts, measured: Measured) -> Finding:
    value = facts.network.somaxconn
    if isinstance(value, Unknown):
        return unknown("somaxconn", value, source=IP_SYSCTL)
    found = f"net.core.somaxconn is {value}, and servers ask for {LISTEN_BACKLOG}"
    if value >= LISTEN_BACKLOG:
        return Finding("somaxconn", Severity.OK, found, source=IP_SYSCTL)
    return Finding(
        "somaxconn",
        Severity.COSTS,
        found,
        # RFC 6298, section 2: the first retransmission comes after a second.
        "The kernel shortens the accept queue to this. A client whose connection finds it full waits a second before"
        " its next attempt. Servers that run keep their queue until they restart.",
        _overflows(facts),
        changes=(Change(f"{_CORE}/somaxconn", str(value), str(LISTEN_BACKLOG)),),
        source=IP_SYSCTL,
    )


def listen_overflows(facts: Facts, measured: Measured) -> Finding:
    value = facts.network.listen_overflows
    if isinstance(value, Unknown):
        return unknown("listen_overflows", value, source=_COUNTERS)
    found = f"{value} connections found a full accept queue since boot, in any program of this network namespace"
    if not value:
        return Finding("listen_overflows", Severity.OK, found, source=_COUNTERS)
    grown = measured.listen_overflows
    return Finding(
        "listen_overflows",
        # What happened before may be over, or another program's.
        Severity.COSTS if grown else Severity.ADVICE,
        found,
        "Each such client waited at least a second. A server that accepts too slowly needs more processes. Watch the"
        " number under load: nstat -az TcpExtListenOverflows.",
        "" if grown is None else f"{grown} more during this examination",
        by_hand=(f"isochrone serve MODELS --processes {max(2, len(facts.cpu.usable))}",),
        source=_COUNTERS,
    )


def _overflows(facts: Facts) -> str:
    value = facts.network.listen_overflows
    return "" if isinstance(value, Unknown) else f"{value} overflows since boot"


def fast_open(facts: Facts, measured: Measured) -> Finding:
    value = facts.network.tcp_fastopen
    if isinstance(value, Unknown):
        return unknown("fast_open", value, source=IP_SYSCTL)
    effect = compared(
        "first answer of a connection", measured.first_answer, "with fast open", measured.first_answer_fast_open
    )
    if value & _FAST_OPEN == _FAST_OPEN:
        return Finding("fast_open", Severity.OK, f"net.ipv4.tcp_fastopen is {value}", effect=effect, source=IP_SYSCTL)
    off = " and ".join(side for bit, side in ((1, "client"), (2, "server")) if not value & bit)
    return Finding(
        "fast_open",
        Severity.ADVICE,
        f"net.ipv4.tcp_fastopen is {value}: off for the {off}",
        "The first request of a new connection takes one round trip more. Isochrone keeps its connections open and does"
        " not ask for fast open; clients and proxies on this machine that do would gain.",
        effect,
        changes=(Change(f"{_IPV4}/tcp_fastopen", str(value), str(value | _FAST_OPEN)),),
        source=IP_SYSCTL,
    )


def tw_reuse(facts: Facts, measured: Measured) -> Finding:
    value, waiting, ports = facts.network.tcp_tw_reuse, facts.network.time_wait, facts.network.local_ports
    if isinstance(value, Unknown):
        return unknown("tw_reuse", value, source=IP_SYSCTL)
    if isinstance(waiting, Unknown):
        return unknown("tw_reuse", waiting, source=IP_SYSCTL)
    if isinstance(ports, Unknown):
        return unknown("tw_reuse", ports, source=IP_SYSCTL)
    number = ports[1] - ports[0] + 1
    many = waiting > number * _MANY_WAITING
    # 2, for loopback alone, is the kernel's default, which it asks not to change without need.
    wanted = 1 if many else 2
    found = f"net.ipv4.tcp_tw_reuse is {value}; {waiting} sockets in TIME_WAIT, {number} ports"
    if value in (1, wanted):
        return Finding("tw_reuse", Severity.OK, found, source=IP_SYSCTL)
    return Finding(
        "tw_reuse",
        Severity.COSTS if many else Severity.ADVICE,
        found,
        "A new connection to the same address may find no free port until an old one has waited for 60 s."
        " Isochrone's gateways keep connections open; programs beside them may not.",
        changes=(Change(f"{_IPV4}/tcp_tw_reuse", str(value), str(wanted)),),
        source=IP_SYSCTL,
    )


def local_ports(facts: Facts, measured: Measured) -> Finding:
    ports = facts.network.local_ports
    if isinstance(ports, Unknown):
        return unknown("local_ports", ports, source=IP_SYSCTL)
    first, last = ports
    found = f"net.ipv4.ip_local_port_range is {first} to {last}: {last - first + 1} ports"
    if last - first + 1 >= _FEW_PORTS:
        return Finding("local_ports", Severity.OK, found, source=IP_SYSCTL)
    return Finding(
        "local_ports",
        Severity.ADVICE,
        found,
        "Each connection of a gateway to one worker's address takes a port; without a free one it fails.",
        # Not for --fix: a firewall may rely on a narrowed range.
        by_hand=("sysctl -w 'net.ipv4.ip_local_port_range=32768 60999'",),
        source=IP_SYSCTL,
    )


def slow_start_after_idle(facts: Facts, measured: Measured) -> Finding:
    value = facts.network.tcp_slow_start_after_idle
    if isinstance(value, Unknown):
        return unknown("slow_start_after_idle", value, source=IP_SYSCTL)
    found = f"net.ipv4.tcp_slow_start_after_idle is {value}"
    if not value:
        return Finding("slow_start_after_idle", Severity.OK, found, source=IP_SYSCTL)
    return Finding(
        "slow_start_after_idle",
        Severity.ADVICE,
        found,
        # RFC 6928: the initial window is ten segments.
        "A connection that was idle for a fraction of a second starts again with a window of about 14 KB: an image of"
        " 600 KB then takes up to five more round trips. Loopback is too short to show it. Without it, a burst may meet"
        " a path that has become slower meanwhile.",
        changes=(Change(f"{_IPV4}/tcp_slow_start_after_idle", str(value), "0"),),
        source=IP_SYSCTL,
    )


def busy_poll(facts: Facts, measured: Measured) -> Finding:
    read, poll = facts.network.busy_read, facts.network.busy_poll
    if isinstance(read, Unknown):
        return unknown("busy_poll", read, source=NET_SYSCTL)
    if isinstance(poll, Unknown):
        return unknown("busy_poll", poll, source=NET_SYSCTL)
    found = f"net.core.busy_read is {read}, net.core.busy_poll is {poll}"
    if read and poll:
        return Finding("busy_poll", Severity.OK, found, source=NET_SYSCTL)
    return Finding(
        "busy_poll",
        Severity.OK,
        f"{found} (off)",
        "With a network card, busy polling saves an interrupt and a wake-up per packet, and keeps a core busy. Loopback"
        " has no device queue to poll: try it under load from another machine.",
        source=NET_SYSCTL,
    )


CHECKS: tuple[Check, ...] = (
    somaxconn,
    listen_overflows,
    fast_open,
    tw_reuse,
    local_ports,
    slow_start_after_idle,
    busy_poll,
)
