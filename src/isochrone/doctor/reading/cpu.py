"""Facts of the CPUs: frequency, idle states, NUMA nodes, interrupts of network cards, clock, quota."""

from __future__ import annotations

import os
from collections.abc import Mapping

from isochrone.doctor.facts import CpuFacts, CpuQuota, IdleState, Interface, Unknown
from isochrone.doctor.reading.parsing import (
    ControlGroup,
    control_group,
    cpu_list,
    interrupts,
    line_counter,
    number,
    quota_v1,
    quota_v2,
)
from isochrone.doctor.reading.tree import Tree

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_CLOCK = "sys/devices/system/clocksource/clocksource0"
_CARDS = "sys/class/net"
_GROUPS = "sys/fs/cgroup"


def read_cpu(tree: Tree) -> CpuFacts:
    return CpuFacts(
        usable=frozenset(os.sched_getaffinity(0)),
        governors=read_governors(tree),
        idle_states=read_idle_states(tree),
        nodes=read_nodes(tree),
        numa_balancing=tree.value("proc/sys/kernel/numa_balancing", number),
        interfaces=read_interfaces(tree),
        clock_source=tree.value(f"{_CLOCK}/current_clocksource", str.strip),
        clock_sources=tree.value(f"{_CLOCK}/available_clocksource", lambda text: tuple(text.split())),
        quotas=read_quotas(tree),
    )


def read_governors(tree: Tree) -> Mapping[str, str] | Unknown:
    names = tree.names(f"{_CPUS}/cpufreq")
    policies = [] if isinstance(names, Unknown) else [name for name in names if name.startswith("policy")]
    if not policies:
        return Unknown("the kernel has no control of the CPU frequency: a virtual machine, or the firmware decides")
    found = {}
    for policy in policies:
        governor = tree.value(f"{_CPUS}/cpufreq/{policy}/scaling_governor", str.strip)
        if isinstance(governor, Unknown):
            return governor
        found[policy] = governor
    return found


def read_idle_states(tree: Tree) -> tuple[IdleState, ...] | Unknown:
    """The states of the first CPU: all CPUs of a kind have the same."""
    states = tree.names(f"{_CPUS}/cpu0/cpuidle")
    if isinstance(states, Unknown):
        return Unknown("the kernel chooses no C-states here: a virtual machine, or the firmware decides")
    found = []
    for state in (name for name in states if name.startswith("state")):
        place = f"{_CPUS}/cpu0/cpuidle/{state}"
        name = tree.value(f"{place}/name", str.strip)
        latency = tree.value(f"{place}/latency", number)
        disabled = tree.value(f"{place}/disable", number)
        if isinstance(name, Unknown):
            return name
        if isinstance(latency, Unknown):
            return latency
        if isinstance(disabled, Unknown):
            return disabled
        found.append(IdleState(name, latency, disabled != 0))
    return tuple(found)


def read_nodes(tree: Tree) -> Mapping[int, frozenset[int]] | Unknown:
    online = tree.value(f"{_NODES}/online", cpu_list)
    if isinstance(online, Unknown):
        return online
    found = {}
    for node in sorted(online):
        cpus = tree.value(f"{_NODES}/node{node}/cpulist", cpu_list)
        if isinstance(cpus, Unknown):
            return cpus
        # A node without CPUs is memory alone, such as a GPU's.
        if cpus:
            found[node] = cpus
    return found


def read_interfaces(tree: Tree) -> tuple[Interface, ...] | Unknown:
    """Network cards with interrupts of their own; virtual interfaces have none."""
    counts = tree.value("proc/interrupts", interrupts)
    if isinstance(counts, Unknown):
        return counts
    names = tree.names(_CARDS)
    if isinstance(names, Unknown):
        return names
    found = []
    for name in names:
        device = f"{_CARDS}/{name}/device"
        # The interrupts of a virtio card belong to its PCI device, one level up.
        places = (tree.names(f"{device}/msi_irqs"), tree.names(f"{device}/../msi_irqs"))
        numbers = next((place for place in places if not isinstance(place, Unknown)), ())
        rows = [counts[int(each)] for each in numbers if each.isdecimal() and int(each) in counts]
        if rows:
            queues = tree.names(f"{_CARDS}/{name}/queues")
            receive = [] if isinstance(queues, Unknown) else [queue for queue in queues if queue.startswith("rx-")]
            found.append(
                Interface(
                    name, tuple(map(sum, zip(*rows, strict=True))), len(receive), _is_steered(tree, name, receive)
                )
            )
    return tuple(found)


def _is_steered(tree: Tree, name: str, queues: list[str]) -> bool:
    masks = (tree.value(f"{_CARDS}/{name}/queues/{queue}/rps_cpus", str.strip) for queue in queues)
    return any(not isinstance(mask, Unknown) and mask.strip("0,") != "" for mask in masks)


def read_quotas(tree: Tree) -> tuple[CpuQuota, ...] | Unknown:
    group = tree.value("proc/self/cgroup", control_group)
    if isinstance(group, Unknown):
        return group
    mount = _mount(tree, group)
    if mount is None:
        return Unknown(f"/{_GROUPS}: no CPU controller is mounted")
    found = []
    for path in group.up_to_root():
        quota = _quota(tree, group.version, f"{mount}/{path}".rstrip("/"), f"/{path}")
        if isinstance(quota, Unknown):
            return quota
        if quota is not None and quota.cpus is not None:
            found.append(quota)
    return tuple(found)


def _mount(tree: Tree, group: ControlGroup) -> str | None:
    if group.version == 2:
        return _GROUPS if tree.exists(f"{_GROUPS}/cgroup.controllers") else None
    return next((place for name in (group.controllers, "cpu") if tree.exists(place := f"{_GROUPS}/{name}")), None)


def _quota(tree: Tree, version: int, place: str, group: str) -> CpuQuota | Unknown | None:
    """None where the group has no such file: the root, or a group that a container does not see."""
    cpus: float | Unknown | None
    if version == 2:
        if not tree.exists(f"{place}/cpu.max"):
            return None
        cpus = tree.value(f"{place}/cpu.max", quota_v2)
        unit, name = 1e3, "throttled_usec"
    else:
        if not tree.exists(f"{place}/cpu.cfs_quota_us"):
            return None
        period = tree.value(f"{place}/cpu.cfs_period_us", number)
        if isinstance(period, Unknown):
            return period
        cpus = tree.value(f"{place}/cpu.cfs_quota_us", lambda text: quota_v1(number(text), period))
        unit, name = 1e6, "throttled_time"
    if isinstance(cpus, Unknown):
        return cpus
    counted = tree.value(
        f"{place}/cpu.stat",
        lambda text: tuple(line_counter(text, each) for each in ("nr_periods", "nr_throttled", name)),
    )
    if isinstance(counted, Unknown):
        return counted if cpus is not None else CpuQuota(group, None, 0, 0, 0.0)
    periods, throttled, total = counted
    return CpuQuota(group, cpus, periods, throttled, total / unit)
