"""The machine's metrics, read from a made-up /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.observe.metrics.machine import MachineCollector


def _write(proc: Path, *, busy: int, idle: int) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 999 999\ncpu0 1 1 1 1\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n")


def _values(collector: MachineCollector) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in collector.collect()}


def test_utilization_is_of_the_time_since_the_last_scrape(tmp_path: Path) -> None:
    _write(tmp_path, busy=1000, idle=1000)
    collector = MachineCollector(tmp_path)
    _write(tmp_path, busy=1030, idle=1070)
    assert _values(collector)["nv_cpu_utilization"] == pytest.approx(0.3)
    _write(tmp_path, busy=1120, idle=1080)
    assert _values(collector)["nv_cpu_utilization"] == pytest.approx(0.9)


def test_two_scrapes_in_one_tick_tell_the_same(tmp_path: Path) -> None:
    _write(tmp_path, busy=0, idle=0)
    collector = MachineCollector(tmp_path)
    _write(tmp_path, busy=1, idle=3)
    assert _values(collector)["nv_cpu_utilization"] == pytest.approx(0.25)
    assert _values(collector)["nv_cpu_utilization"] == pytest.approx(0.25)


def test_waiting_for_a_disk_is_not_being_busy(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\n")
    collector = MachineCollector(tmp_path)
    (tmp_path / "stat").write_text("cpu  10 0 0 40 50 0 0 0\n")
    assert _values(collector)["nv_cpu_utilization"] == pytest.approx(0.1)


def test_used_memory_leaves_out_what_could_be_given_back(tmp_path: Path) -> None:
    _write(tmp_path, busy=0, idle=0)
    values = _values(MachineCollector(tmp_path))
    assert values["nv_cpu_memory_total_bytes"] == 1000 * 1024
    assert values["nv_cpu_memory_used_bytes"] == 600 * 1024


@pytest.mark.parametrize("stat", [None, "", "cpu x y\n", "cpu 1 2\n"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, stat: str | None) -> None:
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
        (tmp_path / "meminfo").write_text("MemTotal: many kB\n")
    assert _values(MachineCollector(tmp_path)) == {}
