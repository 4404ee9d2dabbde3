"""Checks of a CPU's speed: frequency, idle states, quota, clock."""

from __future__ import annotations

import math

from isochrone.doctor.checks.check import KERNEL, Check, compared, unknown
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Change, Finding, Severity

_CPUFREQ = "sys/devices/system/cpu/cpufreq"
_CPUFREQ_DOC = f"{KERNEL}/admin-guide/pm/cpufreq.html"
_CPUIDLE_DOC = f"{KERNEL}/admin-guide/pm/cpuidle.html"
_CGROUP_DOC = f"{KERNEL}/admin-guide/cgroup-v2.html#cpu"
_CLOCK_DOC = f"{KERNEL}/timers/timekeeping.html"
#: Work after a pause that takes this much longer than without one shows a CPU that slows down in between.
_SLOWER = 1.2
#: Exit latency in microseconds from which a C-state is as long as a whole small request (some 30 µs).
_DEEP_US = 30
#: Microseconds of a wake-up that forbidding deep C-states must save to be called a cost.
_SAVED_US = 5.0
#: Nanoseconds of one reading above which the clock is not read in user space: a system call and a slow device.
_SLOW_CLOCK_NS = 300.0


def governor(facts: Facts, measured: Measured) -> Finding:
    effect = compared("fixed work", measured.work_warm, "after 5 ms of sleep", measured.work_cold)
    governors = facts.cpu.governors
    if isinstance(governors, Unknown):
        return unknown("governor", governors, effect, _CPUFREQ_DOC)
    others = {policy: name for policy, name in governors.items() if name != "performance"}
    found = f"CPU frequency governor: {', '.join(sorted(set(governors.values())))}"
    if not others:
        return Finding("governor", Severity.OK, found, effect=effect, source=_CPUFREQ_DOC)
    warm, cold = measured.work_warm, measured.work_cold
    slower = warm is not None and cold is not None and cold.median > warm.median * _SLOWER
    return Finding(
        "governor",
        Severity.COSTS if slower else Severity.ADVICE,
        found,
        "The frequency falls while requests are few, and the next request runs before it has risen. The governor"
        " performance uses more power.",
        effect,
        changes=tuple(
            Change(f"{_CPUFREQ}/{policy}/scaling_governor", name, "performance") for policy, name in others.items()
        ),
        source=_CPUFREQ_DOC,
    )


def c_states(facts: Facts, measured: Measured) -> Finding:
    deep, shallow = measured.wake_up, measured.wake_up_shallow
    effect = compared("wake-up", deep, "without deep C-states", shallow)
    states = facts.cpu.idle_states
    if isinstance(states, Unknown):
        return unknown("c_states", states, effect, _CPUIDLE_DOC)
    enabled = [state for state in states if not state.disabled]
    slowest = max(enabled, key=lambda state: state.exit_us, default=None)
    if slowest is None or slowest.exit_us < _DEEP_US:
        found = "no deep C-state is enabled"
        return Finding("c_states", Severity.OK, found, effect=effect, source=_CPUIDLE_DOC)
    costs = deep is not None and shallow is not None and deep.median - shallow.median >= _SAVED_US
    return Finding(
        "c_states",
        Severity.COSTS if costs else Severity.ADVICE,
        f"idle CPUs may enter {slowest.name}, which takes {slowest.exit_us} µs to leave",
        "The first request after a pause waits until its CPU runs again. Forbidding deep states uses more power and"
        " leaves less room for turbo frequencies.",
        effect,
        # Not for --fix: heat, and turbo frequencies of other cores.
        by_hand=(f"cpupower idle-set --disable-by-latency {_DEEP_US}",),
        source=_CPUIDLE_DOC,
    )


def cpu_quota(facts: Facts, measured: Measured) -> Finding:
    quotas, cpus = facts.cpu.quotas, len(facts.cpu.usable)
    if isinstance(quotas, Unknown):
        return unknown("cpu_quota", quotas, source=_CGROUP_DOC)
    if not quotas:
        return Finding("cpu_quota", Severity.OK, f"no CPU quota; {cpus} CPUs", source=_CGROUP_DOC)
    # The tightest group decides; each one above it applies, too.
    tightest = min(quotas, key=lambda quota: quota.cpus or math.inf)
    limit = tightest.cpus or math.inf
    found = f"control group {tightest.group} may use {limit:g} CPUs; {cpus} are visible"
    worst = max(quotas, key=lambda quota: quota.throttled_ms)
    effect = ""
    if worst.throttled_periods:
        effect = (
            f"throttled in {worst.throttled_periods} of {worst.periods} periods,"
            f" {worst.throttled_ms / worst.throttled_periods:.1f} ms each on average"
        )
        if measured.throttled_ms is not None:
            effect += f"; {measured.throttled_ms:.1f} ms during this examination"
    if limit >= cpus and not worst.throttled_periods:
        return Finding("cpu_quota", Severity.OK, found, source=_CGROUP_DOC)
    return Finding(
        "cpu_quota",
        Severity.COSTS if worst.throttled_periods else Severity.ADVICE,
        found,
        "A group that has used up its quota stands still until the next period (100 ms by default), with all its"
        " requests. Libraries that start a thread per visible CPU use the quota up in a fraction of it.",
        effect,
        by_hand=(
            f"isochrone serve MODELS --processes {max(1, int(limit)) if limit < math.inf else cpus}",
            "Kubernetes: raise or remove resources.limits.cpu, or use whole CPUs with the static CPU manager",
        ),
        source=_CGROUP_DOC,
    )


def clock_source(facts: Facts, measured: Measured) -> Finding:
    name, available = facts.cpu.clock_source, facts.cpu.clock_sources
    reading = measured.clock_read_ns
    effect = "" if reading is None else f"{reading:.0f} ns per reading from Python"
    if isinstance(name, Unknown):
        return unknown("clock_source", name, effect, _CLOCK_DOC)
    found = f"clock source {name}"
    others = [] if isinstance(available, Unknown) else [each for each in available if each != name]
    if others:
        found += f" (also available: {', '.join(others)})"
    # hpet and acpi_pm are devices: each reading leaves the CPU, and is a system call.
    slow = reading > _SLOW_CLOCK_NS if reading is not None else name in ("hpet", "acpi_pm")
    if not slow:
        return Finding("clock_source", Severity.OK, found, effect=effect, source=_CLOCK_DOC)
    return Finding(
        "clock_source",
        Severity.COSTS,
        found,
        "Servers read the clock several times per request.",
        effect,
        # Not for --fix: the kernel leaves tsc when it does not trust it.
        by_hand=tuple(
            f"echo {each} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
            for each in others
            if each in ("tsc", "kvm-clock", "arch_sys_counter")
        )[:1],
        source=_CLOCK_DOC,
    )


CHECKS: tuple[Check, ...] = (governor, c_states, cpu_quota, clock_source)
