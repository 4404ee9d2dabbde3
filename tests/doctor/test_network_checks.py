"""Checks of TCP settings and counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_machine import CORE, IPV4, facts_of
from isochrone.doctor.checks import network
from isochrone.doctor.checks.check import Check
from isochrone.doctor.facts import Measured
from isochrone.doctor.findings import Change, Severity

NOTHING = Measured()
SOCKSTAT = "TCP: inuse 1 orphan 0 tw {} alloc 1 mem 64\n"
NETSTAT = "TcpExt: ListenOverflows\nTcpExt: {}\n"


@pytest.mark.parametrize("check", network.CHECKS)
def test_nothing_to_find(check: Check, tmp_path: Path) -> None:
    finding = check(facts_of(tmp_path), NOTHING)
    assert finding.severity is Severity.OK
    assert finding.commands == ()


@pytest.mark.parametrize(
    ("check", "path"),
    [
        (network.somaxconn, f"{CORE}/somaxconn"),
        (network.listen_overflows, "proc/net/netstat"),
        (network.fast_open, f"{IPV4}/tcp_fastopen"),
        (network.tw_reuse, f"{IPV4}/tcp_tw_reuse"),
        (network.tw_reuse, "proc/net/sockstat"),
        (network.tw_reuse, f"{IPV4}/ip_local_port_range"),
        (network.local_ports, f"{IPV4}/ip_local_port_range"),
        (network.slow_start_after_idle, f"{IPV4}/tcp_slow_start_after_idle"),
        (network.busy_poll, f"{CORE}/busy_read"),
        (network.busy_poll, f"{CORE}/busy_poll"),
    ],
)
def test_what_cannot_be_read_is_unknown(check: Check, path: str, tmp_path: Path) -> None:
    missing = check(facts_of(tmp_path / "a", missing=[path]), NOTHING)
    malformed = check(facts_of(tmp_path / "b", {path: "?"}), NOTHING)
    for finding in (missing, malformed):
        assert finding.severity is Severity.UNKNOWN
        assert f"/{path}" in finding.found
        assert not finding.changes


def test_an_accept_queue_that_is_cut(tmp_path: Path) -> None:
    finding = network.somaxconn(facts_of(tmp_path, {f"{CORE}/somaxconn": "128\n"}), NOTHING)
    assert finding.severity is Severity.COSTS
    assert finding.commands == ("sysctl -w net.core.somaxconn=4096",)
    assert finding.effect == "0 overflows since boot"


def test_overflows_cost_latency_only_while_they_grow(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"proc/net/netstat": NETSTAT.format(12)})
    assert network.listen_overflows(facts, NOTHING).severity is Severity.ADVICE
    assert network.listen_overflows(facts, Measured(listen_overflows=0)).severity is Severity.ADVICE
    finding = network.listen_overflows(facts, Measured(listen_overflows=3))
    assert finding.severity is Severity.COSTS
    assert finding.effect == "3 more during this examination"


@pytest.mark.parametrize(
    ("value", "off", "wanted"), [("0", "client and server", "3"), ("1", "server", "3"), ("1026", "client", "1027")]
)
def test_fast_open_keeps_other_bits(value: str, off: str, wanted: str, tmp_path: Path) -> None:
    finding = network.fast_open(facts_of(tmp_path, {f"{IPV4}/tcp_fastopen": value}), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.found.endswith(f"off for the {off}")
    assert finding.changes == (Change(f"{IPV4}/tcp_fastopen", value, wanted),)


@pytest.mark.parametrize(
    ("value", "waiting", "severity", "wanted"),
    [
        ("0", 0, Severity.ADVICE, "2"),
        ("1", 0, Severity.OK, None),
        ("2", 14_116, Severity.OK, None),
        ("0", 14_117, Severity.COSTS, "1"),
        ("1", 14_117, Severity.OK, None),
        ("2", 14_117, Severity.COSTS, "1"),
    ],
)
def test_reuse_is_asked_for_only_where_ports_run_out(
    value: str, waiting: int, severity: Severity, wanted: str | None, tmp_path: Path
) -> None:
    changed = {f"{IPV4}/tcp_tw_reuse": value, "proc/net/sockstat": SOCKSTAT.format(waiting)}
    finding = network.tw_reuse(facts_of(tmp_path, changed), NOTHING)
    assert finding.severity is severity
    assert [change.new for change in finding.changes] == ([] if wanted is None else [wanted])


def test_a_narrow_range_of_ports_is_left_to_the_user(tmp_path: Path) -> None:
    finding = network.local_ports(facts_of(tmp_path, {f"{IPV4}/ip_local_port_range": "40000 41000"}), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert not finding.changes
    assert finding.commands


def test_slow_start_after_idle(tmp_path: Path) -> None:
    finding = network.slow_start_after_idle(facts_of(tmp_path, {f"{IPV4}/tcp_slow_start_after_idle": "1"}), NOTHING)
    assert finding.severity is Severity.ADVICE
    assert finding.commands == ("sysctl -w net.ipv4.tcp_slow_start_after_idle=0",)


def test_busy_polling_is_explained_and_never_changed(tmp_path: Path) -> None:
    """Loopback cannot show what it saves, so that nothing here may claim a gain."""
    finding = network.busy_poll(facts_of(tmp_path, {f"{CORE}/busy_read": "0", f"{CORE}/busy_poll": "0"}), NOTHING)
    assert (finding.severity, finding.changes, finding.effect) == (Severity.OK, (), "")
    assert "from another machine" in finding.reason
    assert "(off)" in finding.found
