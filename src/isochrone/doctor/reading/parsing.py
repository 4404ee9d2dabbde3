"""The formats of files in /proc and /sys. Pure: text in, values out; ``ValueError`` if the text has another format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


def number(text: str) -> int:
    return int(text.strip())


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def port_range(text: str) -> tuple[int, int]:
    """``32768 60999``."""
    first, last = numbers(text)
    if not 0 < first <= last < 1 << 16:
        raise ValueError(f"not a range of ports: {text!r}")
    return first, last


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-3,8,10-11``; empty text is no CPU."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        if not re.fullmatch(r"\d+(-\d+)?", part, re.ASCII):
            raise ValueError(f"not a list of CPUs: {text!r}")
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(f"not a list of CPUs: {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def chosen(text: str) -> str:
    """The word in brackets: ``always [madvise] never``."""
    match = re.search(r"\[([^\]\s]+)\]", text)
    if match is None:
        raise ValueError(f"no word in brackets: {text!r}")
    return match[1]


def table_counter(text: str, table: str, name: str) -> int:
    """A counter of /proc/net/netstat: a line of names, then a line of values, both starting with the table's name."""
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{table}:")]
    names, values = lines
    return int(values[names.index(name)])


def line_counter(text: str, name: str) -> int:
    """A counter on a line of its own: /proc/vmstat, cpu.stat (``name value``), /proc/meminfo (``name: value kB``)."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].rstrip(":") == name:
            return int(words[1])
    raise ValueError(f"no {name}")


def time_wait(text: str) -> int:
    """Sockets in TIME_WAIT, from /proc/net/sockstat: ``TCP: inuse 1 orphan 0 tw 7 alloc 1 mem 64``."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["TCP:"]:
            return int(words[words.index("tw") + 1])
    raise ValueError("no line TCP:")


def interrupts(text: str) -> dict[int, tuple[int, ...]]:
    """Interrupts by number and CPU, from /proc/interrupts. Lines without a number (IPI, NMI) are left out."""
    header, *lines = text.splitlines() or [""]
    cpus = len(header.split())
    if not cpus or not all(word.startswith("CPU") for word in header.split()):
        raise ValueError("no line of CPUs")
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if name.strip().isdecimal():
            found[int(name)] = tuple(int(word) for word in rest.split()[:cpus])
            if len(found[int(name)]) != cpus:
                raise ValueError(f"interrupt {name.strip()} has fewer numbers than there are CPUs")
    return found


def quota_v2(text: str) -> float | None:
    """CPUs by cpu.max: ``max 100000`` or ``150000 100000``."""
    limit, period = text.split()
    if int(period) <= 0:
        raise ValueError(f"not a period: {period}")
    return None if limit == "max" else int(limit) / int(period)


def quota_v1(quota: int, period: int) -> float | None:
    """CPUs by cpu.cfs_quota_us and cpu.cfs_period_us. A negative quota is none."""
    if period <= 0:
        raise ValueError(f"not a period: {period}")
    return None if quota < 0 else quota / period


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Where the CPU controller of a process is. ``controllers`` is empty in version 2."""

    version: int
    controllers: str
    path: str

    def up_to_root(self) -> Sequence[str]:
        """``/a/b`` → ``a/b``, ``a`` and the root, ``""``."""
        parts = [part for part in self.path.split("/") if part and part != ".."]
        return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def control_group(text: str) -> ControlGroup:
    """The group of the CPU controller, from /proc/self/cgroup (cgroups(7)): ``4:cpu,cpuacct:/x`` or ``0::/x``."""
    unified = None
    for line in text.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return ControlGroup(1, controllers, path)
        if hierarchy == "0" and not controllers:
            unified = ControlGroup(2, "", path)
    if unified is None:
        raise ValueError("no line of the CPU controller")
    return unified
