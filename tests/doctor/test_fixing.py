"""Changes are written, verified, refused and undone as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_machine import CORE, HUGE, IPV4, build, facts_of
from isochrone.doctor.checks.catalog import CHECKS, findings_of
from isochrone.doctor.facts import Measured
from isochrone.doctor.findings import Change, Finding, Severity
from isochrone.doctor.fixing import Outcome, apply, planned, unwritable
from isochrone.doctor.reading.machine import read_facts
from isochrone.doctor.reading.tree import Tree

QUEUE = Change(f"{CORE}/somaxconn", "128", "4096")


def test_commands_undo_and_persistence() -> None:
    assert QUEUE.command == "sysctl -w net.core.somaxconn=4096"
    assert QUEUE.undo == "sysctl -w net.core.somaxconn=128"
    assert QUEUE.persistent == "echo 'net.core.somaxconn = 4096' >> /etc/sysctl.d/90-isochrone.conf"
    ports = Change(f"{IPV4}/ip_local_port_range", "1 2", "3 4")
    assert ports.command == "sysctl -w 'net.ipv4.ip_local_port_range=3 4'"


def test_changes_are_written_and_can_be_undone(tmp_path: Path) -> None:
    build(tmp_path, {QUEUE.path: "128\n"})
    assert apply([QUEUE], tmp_path) == (Outcome(QUEUE),)
    assert (tmp_path / QUEUE.path).read_text() == "4096"
    back = Change(QUEUE.path, QUEUE.new, QUEUE.old)
    assert apply([back], tmp_path) == (Outcome(back),)
    assert (tmp_path / QUEUE.path).read_text() == "128"


def test_a_change_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "directory").mkdir()
    broken = Change("directory", "1", "2")
    outcomes = apply([broken, QUEUE], tmp_path)
    assert [outcome.error for outcome in outcomes] == ["Is a directory", ""]


def test_a_value_that_the_kernel_does_not_take_is_an_error(tmp_path: Path) -> None:
    build(tmp_path)
    silent = tmp_path / "null"
    silent.symlink_to("/dev/null")
    assert apply([Change("null", "1", "2")], tmp_path)[0].error == "the kernel keeps ''"


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path)
    missing = Change("proc/sys/net/core/nothing", "1", "2")
    assert unwritable([QUEUE, missing], tmp_path) == (missing,)
    monkeypatch.setattr("isochrone.doctor.fixing.os.access", lambda path, mode: False)
    assert unwritable([QUEUE], tmp_path) == (QUEUE,)


def test_a_bad_machine_is_fixed_by_its_plan(tmp_path: Path) -> None:
    """All changes together leave nothing to change, and no finding has a change without a reason and a source."""
    bad = {
        f"{CORE}/somaxconn": "128\n",
        f"{IPV4}/tcp_fastopen": "0\n",
        f"{IPV4}/tcp_tw_reuse": "0\n",
        f"{IPV4}/tcp_slow_start_after_idle": "1\n",
        f"{HUGE}/enabled": "[always] madvise never\n",
        "proc/meminfo": "SwapTotal: 1000000 kB\nSwapFree: 1000000 kB\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
    }
    findings = findings_of(facts_of(tmp_path, bad), Measured())
    changes = planned(findings)
    assert len(changes) == 8
    for finding in findings:
        assert finding.source.startswith("https://")
        assert finding.reason or finding.severity is Severity.OK
    assert not [outcome for outcome in apply(changes, tmp_path) if outcome.error]
    # A file of choices shows them all again once it is written.
    (tmp_path / HUGE / "enabled").write_text("always [madvise] never\n")
    assert planned(findings_of(read_facts(Tree(tmp_path)), Measured())) == ()


def test_the_gravest_findings_come_first(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {f"{CORE}/somaxconn": "1", f"{IPV4}/tcp_fastopen": "1"}, missing=[HUGE])
    findings = findings_of(facts, Measured())
    assert [finding.severity for finding in findings[:3]] == [Severity.COSTS, Severity.ADVICE, Severity.UNKNOWN]
    assert sorted(finding.check for finding in findings) == sorted(check.__name__ for check in CHECKS)


def test_a_finding_lists_what_fix_runs_before_what_is_left_to_the_user() -> None:
    finding = Finding("x", Severity.ADVICE, "found", by_hand=("by hand",), changes=(QUEUE,))
    assert finding.commands == (QUEUE.command, "by hand")
