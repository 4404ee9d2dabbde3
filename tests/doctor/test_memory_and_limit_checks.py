"""Checks of huge pages, swap, open files and timer slack."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from doctor_machine import HUGE, facts_of
from isochrone.doctor.checks import limits, memory
from isochrone.doctor.checks.check import Check
from isochrone.doctor.facts import Facts, Measured, Times, Unknown
from isochrone.doctor.findings import Change, Severity

NOTHING = Measured()
SWAP = {"proc/meminfo": "SwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n"}


@pytest.mark.parametrize("check", [*memory.CHECKS, *limits.CHECKS])
def test_nothing_to_find(check: Check, tmp_path: Path) -> None:
    finding = check(facts_of(tmp_path), NOTHING)
    assert finding.severity is Severity.OK
    assert finding.commands == ()


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    no_pages = facts_of(tmp_path / "a", missing=[HUGE])
    assert memory.huge_pages(no_pages, NOTHING).severity is Severity.UNKNOWN
    malformed = facts_of(tmp_path / "b", {f"{HUGE}/enabled": "always madvise never"})
    assert memory.huge_pages(malformed, NOTHING).severity is Severity.UNKNOWN
    no_swap = facts_of(tmp_path / "c", missing=["proc/meminfo"])
    assert memory.swap(no_swap, NOTHING).severity is Severity.UNKNOWN
    no_swappiness = facts_of(tmp_path / "d", SWAP, missing=["proc/sys/vm/swappiness"])
    assert memory.swap(no_swappiness, NOTHING).severity is Severity.UNKNOWN
    facts = facts_of(tmp_path / "e")
    no_slack = replace(facts, limits=replace(facts.limits, timer_slack_ns=Unknown("prctl: no")))
    assert limits.timer_slack(no_slack, NOTHING).found == "prctl: no"
    assert limits.timer_slack(no_slack, NOTHING).severity is Severity.UNKNOWN


def test_huge_pages_everywhere(tmp_path: Path) -> None:
    facts = facts_of(
        tmp_path,
        {
            f"{HUGE}/enabled": "[always] madvise never\n",
            f"{HUGE}/defrag": "[always] defer madvise never\n",
            "proc/vmstat": "compact_stall 17\npswpin 0\n",
        },
    )
    measured = Measured(first_touch=Times(2200, 2500, 30), first_touch_small=Times(3, 20, 30))
    finding = memory.huge_pages(facts, measured)
    assert finding.severity is Severity.COSTS
    assert finding.changes == (
        Change(f"{HUGE}/enabled", "always", "madvise"),
        Change(f"{HUGE}/defrag", "always", "madvise"),
    )
    assert finding.effect == (
        "first write to fresh memory 2200 µs (p99 2500 µs); with small pages 3.0 µs (p99 20.0 µs);"
        " 17 allocations waited for compaction since boot"
    )
    assert finding.changes[0].undo == f"echo always > /{HUGE}/enabled"
    assert finding.changes[0].persistent == (
        f"echo 'w /{HUGE}/enabled - - - - madvise' >> /etc/tmpfiles.d/isochrone.conf"
    )


def test_swap_costs_latency_while_pages_come_back(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, SWAP)
    finding = memory.swap(facts, NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.found == "2048 MiB of swap, 1024 MiB in use; vm.swappiness is 60"
    assert finding.commands == ("sysctl -w vm.swappiness=10",)
    assert memory.swap(facts, Measured(swapped_in=5)).severity is Severity.COSTS
    little = facts_of(tmp_path / "little", {**SWAP, "proc/sys/vm/swappiness": "1"})
    assert memory.swap(little, NOTHING).severity is Severity.OK
    assert memory.swap(little, Measured(swapped_in=5)).commands == ("swapoff -a",)


def _with_files(facts: Facts, limit: int) -> Facts:
    return replace(facts, limits=replace(facts.limits, open_files=limit))


@pytest.mark.parametrize(
    ("limit", "severity"),
    [
        (1024, Severity.COSTS),
        (4095, Severity.COSTS),
        (4096, Severity.ADVICE),
        (33_791, Severity.ADVICE),
        (33_792, Severity.OK),
        (resource.RLIM_INFINITY, Severity.OK),
    ],
)
def test_open_files(limit: int, severity: Severity, tmp_path: Path) -> None:
    finding = limits.open_files(_with_files(facts_of(tmp_path), limit), NOTHING)
    assert finding.severity is severity
    assert bool(finding.commands) is (severity is not Severity.OK)
    assert not finding.changes


def test_few_files_of_the_whole_machine(tmp_path: Path) -> None:
    finding = limits.open_files(facts_of(tmp_path, {"proc/sys/fs/file-max": "8192\n"}), NOTHING)
    assert finding.severity is Severity.COSTS
    assert "fs.file-max is 8192" in finding.found


@pytest.mark.parametrize(
    ("slack", "severity"), [(49_999, Severity.OK), (50_000, Severity.ADVICE), (4_000_000, Severity.COSTS)]
)
def test_timer_slack(slack: int, severity: Severity, tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    facts = replace(facts, limits=replace(facts.limits, timer_slack_ns=slack))
    measured = Measured(overshoot=Times(54, 60, 9), overshoot_exact=Times(4, 9, 9))
    finding = limits.timer_slack(facts, measured)
    assert finding.severity is severity
    assert finding.effect == ("a sleep ends late by 54.0 µs (p99 60.0 µs); with 1 ns of slack by 4.0 µs (p99 9.0 µs)")
