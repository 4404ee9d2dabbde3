"""Checks of CPUs: frequency, idle states, quota, clock; NUMA nodes and interrupts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from doctor_machine import CARD, CLOCK, CPU, facts_of
from isochrone.doctor.checks import cpu, placement
from isochrone.doctor.checks.check import Check
from isochrone.doctor.facts import Measured, Times
from isochrone.doctor.findings import Change, Severity

NOTHING = Measured()
IDLE = f"{CPU}/cpu0/cpuidle/state1"
GROUP = "sys/fs/cgroup/pod/worker"
STAT = "nr_periods {}\nnr_throttled {}\nthrottled_usec {}\n"
TWO_NODES = {
    "sys/devices/system/node/online": "0-2\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
    # Memory of a device.
    "sys/devices/system/node/node2/cpulist": "\n",
}


def times(median: float) -> Times:
    return Times(median, median, 9)


@pytest.mark.parametrize("check", [*cpu.CHECKS, *placement.CHECKS])
def test_nothing_to_find(check: Check, tmp_path: Path) -> None:
    finding = check(facts_of(tmp_path), NOTHING)
    assert finding.severity is Severity.OK
    assert finding.commands == ()


@pytest.mark.parametrize(
    ("check", "path"),
    [
        (cpu.governor, f"{CPU}/cpufreq"),
        (cpu.governor, f"{CPU}/cpufreq/policy1/scaling_governor"),
        (cpu.c_states, f"{CPU}/cpu0/cpuidle"),
        (cpu.c_states, f"{IDLE}/name"),
        (cpu.c_states, f"{IDLE}/latency"),
        (cpu.c_states, f"{IDLE}/disable"),
        (cpu.cpu_quota, "proc/self/cgroup"),
        (cpu.clock_source, f"{CLOCK}/current_clocksource"),
        (placement.numa_placement, "sys/devices/system/node/online"),
        (placement.numa_placement, "sys/devices/system/node/node0/cpulist"),
        (placement.interrupts, "proc/interrupts"),
        (placement.interrupts, "sys/class/net"),
        (placement.interrupts, f"{CARD}/device"),
    ],
)
def test_what_cannot_be_read_is_unknown(check: Check, path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    missing = [path, f"{CPU}/cpufreq"] if path == f"{CPU}/cpufreq" else [path]
    facts = facts_of(tmp_path, missing=missing)
    if path.endswith("scaling_governor"):
        (tmp_path / path).mkdir(parents=True)
        facts = facts_of(tmp_path, missing=missing)
    finding = check(facts, NOTHING)
    assert finding.severity is Severity.UNKNOWN
    assert finding.found
    assert not finding.commands


def test_a_governor_costs_latency_where_work_after_a_pause_is_slower(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {f"{CPU}/cpufreq/policy1/scaling_governor": "powersave\n"})
    assert cpu.governor(facts, NOTHING).severity is Severity.ADVICE
    same = Measured(work_warm=times(50), work_cold=times(55))
    assert cpu.governor(facts, same).severity is Severity.ADVICE
    finding = cpu.governor(facts, Measured(work_warm=times(50), work_cold=times(90)))
    assert finding.severity is Severity.COSTS
    assert finding.effect == "fixed work 50.0 µs (p99 50.0 µs); after 5 ms of sleep 90.0 µs (p99 90.0 µs)"
    path = f"{CPU}/cpufreq/policy1/scaling_governor"
    assert finding.changes == (Change(path, "powersave", "performance"),)
    assert finding.commands == (f"echo performance > /{path}",)


def test_deep_idle_states_cost_latency_where_waking_up_is_slower(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {f"{IDLE}/disable": "0\n"})
    finding = cpu.c_states(facts, NOTHING)
    assert finding.severity is Severity.ADVICE
    assert "C6, which takes 133 µs" in finding.found
    assert finding.commands
    assert not finding.changes
    assert cpu.c_states(facts, Measured(wake_up=times(60), wake_up_shallow=times(20))).severity is Severity.COSTS
    assert cpu.c_states(facts, Measured(wake_up=times(22), wake_up_shallow=times(20))).severity is Severity.ADVICE


def test_a_shallow_idle_state_is_no_finding(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {f"{IDLE}/disable": "0\n", f"{IDLE}/latency": "2\n"})
    assert cpu.c_states(facts, NOTHING).severity is Severity.OK


def test_a_quota_that_throttles_costs_latency(tmp_path: Path) -> None:
    facts = facts_of(
        tmp_path, {f"{GROUP}/cpu.max": "200000 100000\n", f"{GROUP}/cpu.stat": STAT.format(40, 4, 120_000)}
    )
    finding = cpu.cpu_quota(facts, Measured(throttled_ms=7.5))
    assert finding.severity is Severity.COSTS
    assert finding.found == "control group /pod/worker may use 2 CPUs; 4 are visible"
    assert finding.effect == ("throttled in 4 of 40 periods, 30.0 ms each on average; 7.5 ms during this examination")
    assert "isochrone serve MODELS --processes 2" in finding.commands


def test_a_quota_below_the_visible_cpus_is_advice(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {f"{GROUP}/cpu.max": "50000 100000\n"})
    finding = cpu.cpu_quota(facts, NOTHING)
    assert finding.severity is Severity.ADVICE
    assert "isochrone serve MODELS --processes 1" in finding.commands
    enough = facts_of(tmp_path, {f"{GROUP}/cpu.max": "400000 100000\n"})
    assert cpu.cpu_quota(enough, NOTHING).severity is Severity.OK


def test_a_clock_is_judged_by_its_reading_or_else_by_its_name(tmp_path: Path) -> None:
    device = facts_of(tmp_path, {f"{CLOCK}/current_clocksource": "hpet\n"})
    finding = cpu.clock_source(device, NOTHING)
    assert finding.severity is Severity.COSTS
    assert finding.commands == (f"echo tsc > /{CLOCK}/current_clocksource",)
    assert not finding.changes
    assert cpu.clock_source(device, Measured(clock_read_ns=1200.0)).effect == "1200 ns per reading from Python"
    fast = facts_of(tmp_path / "fast")
    assert cpu.clock_source(fast, Measured(clock_read_ns=60.0)).severity is Severity.OK
    assert cpu.clock_source(fast, Measured(clock_read_ns=900.0)).severity is Severity.COSTS


# Placement.


def test_a_process_on_several_nodes(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, TWO_NODES)
    finding = placement.numa_placement(facts, NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.commands[1] == "numactl --cpunodebind=1 --membind=1 isochrone serve MODELS"
    bound = replace(facts, cpu=replace(facts.cpu, usable=frozenset((2, 3))))
    assert placement.numa_placement(bound, NOTHING).severity is Severity.OK


def test_balancing_matters_only_between_nodes(tmp_path: Path) -> None:
    finding = placement.numa_balancing(facts_of(tmp_path, TWO_NODES), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.commands == ("sysctl -w kernel.numa_balancing=0",)
    off = facts_of(tmp_path / "off", {**TWO_NODES, "proc/sys/kernel/numa_balancing": "0"})
    assert placement.numa_balancing(off, NOTHING).severity is Severity.OK
    hidden = facts_of(tmp_path / "hidden", TWO_NODES, missing=["proc/sys/kernel/numa_balancing"])
    assert placement.numa_balancing(hidden, NOTHING).severity is Severity.UNKNOWN


ONE_SIDED = "  CPU0 CPU1 CPU2 CPU3\n 24: 9 90000 9 9 PCI-MSI eth0\n"


def test_interrupts_on_one_cpu(tmp_path: Path) -> None:
    finding = placement.interrupts(facts_of(tmp_path, {"proc/interrupts": ONE_SIDED}), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.found == "eth0: 100% of the interrupts on one of 4 CPUs"
    assert finding.commands == (f"echo f > /{CARD}/queues/rx-0/rps_cpus",)
    several = facts_of(tmp_path / "b", {"proc/interrupts": ONE_SIDED, f"{CARD}/queues/rx-1/rps_cpus": "0"})
    assert placement.interrupts(several, NOTHING).commands == ("ethtool -L eth0 combined 4",)


@pytest.mark.parametrize(
    ("cpus", "mask"), [(1, "1"), (4, "f"), (32, "ffffffff"), (33, "1,ffffffff"), (96, "ffffffff,ffffffff,ffffffff")]
)
def test_masks_of_cpus(cpus: int, mask: str) -> None:
    assert placement.mask(cpus) == mask


@pytest.mark.parametrize(
    "changed",
    [
        {"proc/interrupts": ONE_SIDED, f"{CARD}/queues/rx-0/rps_cpus": "f\n"},
        {"proc/interrupts": "  CPU0 CPU1 CPU2 CPU3\n 24: 9 90 9 9 PCI-MSI eth0\n"},
        {"proc/interrupts": "  CPU0 CPU1\n 24: 9 90000 PCI-MSI eth0\n"},
    ],
    ids=["steered", "too few to tell", "two CPUs"],
)
def test_interrupts_that_are_no_finding(changed: dict[str, str], tmp_path: Path) -> None:
    assert placement.interrupts(facts_of(tmp_path, changed), NOTHING).severity is Severity.OK
