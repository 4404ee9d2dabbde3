"""Whether a machine really has the memory that Ray promises: a node states its size itself, and may be wrong.

A raylet in a container may count the memory of the whole host, an operator may start it with ``--memory``, and others
may use the machine. A process that is started there would load its models for minutes and then be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from isochrone.control.state.needs import Needs
from isochrone.engines.ray.nodes import MEMORY

#: Of cgroup version 2 and version 1: the limit, the usage, and the file cache in the usage that can be given up.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_refusal(needs: Needs, available: int | None) -> str:
    """Why a process must not start on its node; "": it may. ``available``: bytes, None if that is not known."""
    wanted = dict(needs.resources).get(MEMORY, 0.0)
    if available is None or wanted <= available:
        return ""
    return f"has {_megabytes(available)} of the {_megabytes(wanted)} of memory that Ray counts on"


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that a new process can have: of the machine and of every cgroup that this process is in."""
    rooms = [room for room in (_of_machine(root), *_of_cgroups(root)) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _of_machine(root: Path) -> int | None:
    kilobytes = _known(_field, root / "proc/meminfo", "MemAvailable:")
    return 1024 * kilobytes if kilobytes is not None else None


def _of_cgroups(root: Path) -> Iterator[int | None]:
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            top, files = mounted / "memory", _FILES[1]
        elif not controllers:
            top, files = mounted, _FILES[0]
        else:
            continue
        own = top / path.lstrip("/")
        # A container sees its own cgroup as the top one, by a path that may not exist in there.
        for place in (own, *own.parents):
            yield _known(_room, place, *files)
            if place == top:
                break


def _room(place: Path, limit: str, usage: str, cache: str) -> int:
    bound = (place / limit).read_text()
    used = int((place / usage).read_text())
    return int(bound) - (used - _field(place / "memory.stat", cache))


def _field(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))


def _known(read: Callable[..., int], place: Path, *names: str) -> int | None:
    """None: the file is not there, or says that there is no limit."""
    try:
        return read(place, *names)
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _megabytes(amount: float) -> str:
    return f"{amount / 1e6:,.0f} MB"
