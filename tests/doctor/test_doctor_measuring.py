"""Measurements have sane shapes; how long anything takes is not asserted."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor_machine import IPV4, facts_of
from isochrone.doctor.examination import with_growth
from isochrone.doctor.facts import CpuQuota, Measured, Times, Unknown
from isochrone.doctor.measuring import local, loopback
from isochrone.doctor.measuring.all_times import measure
from isochrone.doctor.measuring.samples import times_of
from isochrone.doctor.reading.machine import read_limits
from isochrone.doctor.reading.tree import Tree


@given(st.lists(st.integers(-1000, 1 << 40), min_size=1, max_size=300))
def test_a_median_and_a_percentile_of_any_durations(nanoseconds: list[int]) -> None:
    times = times_of(nanoseconds)
    assert times.samples == len(nanoseconds)
    assert min(nanoseconds) / 1000 <= times.median <= times.p99 <= max(nanoseconds) / 1000


def test_all_times_are_taken(tmp_path: Path) -> None:
    lines: list[str] = []
    children = psutil.Process().children()
    measured = measure(facts_of(tmp_path, {f"{IPV4}/tcp_fastopen": "1"}), lines.append)
    assert len(lines) == 6
    for name in ("wake_up", "round_trip", "first_answer", "overshoot", "work_warm", "work_cold", "first_touch"):
        times = getattr(measured, name)
        assert isinstance(times, Times), name
        assert times.samples > 20, name
        assert times.median <= times.p99, name
    assert measured.clock_read_ns is not None
    assert measured.clock_read_ns > 0
    # Fast open is not measured where the kernel does not allow it.
    assert measured.first_answer_fast_open is None
    assert psutil.Process().children() == children


def test_a_first_answer_with_fast_open_comes_whatever_the_kernel_allows() -> None:
    with loopback.started_peer() as port:
        assert loopback.first_answer(port, fast_open=True).samples > 20


def test_the_peer_survives_a_connection_that_is_reset() -> None:
    with loopback.started_peer() as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(b"?")
        assert loopback.round_trip(port).samples > 20


def test_a_time_that_cannot_be_taken_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback.sys, "executable", str(tmp_path / "nothing"))
    measured = measure(facts_of(tmp_path), lambda line: None)
    assert measured.wake_up is None
    assert measured.overshoot is not None
    assert len(measured.failed) == 5
    assert f"wake-ups: [Errno 2] No such file or directory: '{tmp_path / 'nothing'}'" in measured.failed


def test_a_peer_that_cannot_start_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback.sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="did not start"), loopback.started_peer():
        raise AssertionError("a port was given")


def test_timer_slack_is_restored() -> None:
    before = read_limits(Tree()).timer_slack_ns
    with local.timer_slack(7777):
        assert read_limits(Tree()).timer_slack_ns == 7777
    assert read_limits(Tree()).timer_slack_ns == before


def test_growth_of_counters(tmp_path: Path) -> None:
    earlier = facts_of(tmp_path)
    network = replace(earlier.network, listen_overflows=5)
    cpu = replace(earlier.cpu, quotas=(CpuQuota("/a", 1.0, 9, 3, 40.0),))
    memory = replace(earlier.memory, swapped_in=Unknown("no"))
    measured = with_growth(Measured(), earlier, replace(earlier, network=network, cpu=cpu, memory=memory))
    assert (measured.listen_overflows, measured.throttled_ms, measured.swapped_in) == (5, 40.0, None)


@pytest.mark.skipif(not os.access("/dev/cpu_dma_latency", os.W_OK), reason="only root may forbid C-states")
def test_idle_states_can_be_forbidden_for_a_while() -> None:
    with loopback.shallow_idle(), loopback.started_peer() as port:
        assert loopback.wake_up(port).samples > 20
