"""Formats of files in /proc and /sys: what is written can be read, and anything else is a ``ValueError``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.doctor.reading import parsing

CPUS = st.frozensets(st.integers(0, 300), max_size=40)


def as_list(cpus: frozenset[int]) -> str:
    """As the kernel prints it: ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


@given(CPUS)
def test_a_list_of_cpus_is_read_as_it_was_written(cpus: frozenset[int]) -> None:
    assert parsing.cpu_list(f"{as_list(cpus)}\n") == cpus


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "1-2-3", "1;2", "١"])
def test_what_is_no_list_of_cpus(text: str) -> None:
    with pytest.raises(ValueError):
        parsing.cpu_list(text)


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_quotas_of_both_versions_are_the_same(quota: int, period: int) -> None:
    assert parsing.quota_v2(f"{quota} {period}\n") == parsing.quota_v1(quota, period) == quota / period


def test_no_quota() -> None:
    assert parsing.quota_v2("max 100000") is None
    assert parsing.quota_v1(-1, 100_000) is None


@pytest.mark.parametrize("text", ["", "100000", "max", "1 2 3", "many 100000", "100 0", "100 -5"])
def test_what_is_no_quota(text: str) -> None:
    with pytest.raises(ValueError):
        parsing.quota_v2(text)


NAMES = st.text(st.sampled_from("abcXYZ_09"), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.integers(0, 1 << 63), min_size=1), st.data())
def test_counters_of_both_formats(counters: dict[str, int], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(counters)))
    table = f"TcpExt: {' '.join(counters)}\nTcpExt: {' '.join(map(str, counters.values()))}\nIpExt: x\nIpExt: 1\n"
    assert parsing.table_counter(table, "TcpExt", name) == counters[name]
    lines = "".join(f"{key} {value}\n" for key, value in counters.items())
    assert parsing.line_counter(lines, name) == counters[name]
    assert parsing.line_counter(lines.replace(" ", ":  ").replace("\n", " kB\n"), name) == counters[name]


@given(st.dictionaries(st.integers(0, 500), st.tuples(*[st.integers(0, 1 << 32)] * 3), max_size=8))
def test_interrupts(counts: dict[int, tuple[int, int, int]]) -> None:
    lines = [f"{number:4}: {' '.join(map(str, row))} PCI-MSI 1-edge eth0" for number, row in counts.items()]
    text = "\n".join(["      CPU0 CPU1 CPU2", *lines, "NMI: 1 2 3 Non-maskable interrupts", "ERR: 0"])
    assert parsing.interrupts(text) == counts


@pytest.mark.parametrize(
    ("text", "version", "groups"),
    [
        ("0::/", 2, [""]),
        ("0::/a/b\n", 2, ["a/b", "a", ""]),
        ("4:memory:/m\n3:cpu,cpuacct:/docker/x\n0::/\n", 1, ["docker/x", "docker", ""]),
        ("1:cpuset:/a\n0::/b\n", 2, ["b", ""]),
        # A group outside the namespace of a container.
        ("0::/../../other\n", 2, ["other", ""]),
    ],
)
def test_the_group_of_the_cpu_controller(text: str, version: int, groups: list[str]) -> None:
    group = parsing.control_group(text)
    assert (group.version, group.up_to_root()) == (version, groups)


def test_no_group_of_the_cpu_controller() -> None:
    with pytest.raises(ValueError):
        parsing.control_group("4:memory:/m\n")


def test_choices_ports_and_sockets() -> None:
    assert parsing.chosen("always [madvise] never\n") == "madvise"
    assert parsing.port_range("32768\t60999\n") == (32768, 60999)
    assert parsing.time_wait("sockets: used 3\nTCP: inuse 1 orphan 0 tw 42 alloc 2 mem 1\n") == 42


PARSERS: list[Callable[[str], object]] = [
    parsing.number,
    parsing.port_range,
    parsing.cpu_list,
    parsing.chosen,
    parsing.time_wait,
    parsing.interrupts,
    parsing.quota_v2,
    parsing.control_group,
    lambda text: parsing.table_counter(text, "TcpExt", "ListenOverflows"),
    lambda text: parsing.line_counter(text, "pswpin"),
]
FRAGMENTS = st.sampled_from(
    ["TcpExt:", "TCP:", "tw", "CPU0", "pswpin", "max", "0::/", "[", "]", "-", ",", ":", "9", "\n", " "]
)


@given(st.one_of(st.text(), st.lists(FRAGMENTS).map("".join)), st.sampled_from(PARSERS))
def test_no_text_makes_a_parser_fail_otherwise(text: str, parse: Callable[[str], object]) -> None:
    """``Tree`` turns these two into ``Unknown``."""
    with contextlib.suppress(ValueError, IndexError):
        parse(text)
