"""The cores that each side of a measured hop runs on.

`split` gives the proxy a core of its own, so that its requests per second are its own; client and upstream have the
rest, and on two cores they share one: the report shows how full each was. `together` puts all on one core: with one
request in flight only one side ever runs, and no sleeping core has to be woken, which on a virtual machine can cost
more than the hop. Must never touch a process that the bench did not start.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """A name and the cores of each side."""

    name: str
    proxy: frozenset[int]
    upstream: frozenset[int]
    client: frozenset[int]


def placements() -> dict[str, Placement]:
    """All placements by name, for the cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(f"a hop is measured on two cores or more, this machine gives {len(cores)}")
    first, last = frozenset({cores[0]}), frozenset({cores[-1]})
    upstream = frozenset({cores[1]})  # its own where there are three or more, the client's where there are two
    return {
        "split": Placement("split", first, upstream, last),
        "together": Placement("together", last, last, last),
    }


def move(pid: int, cores: frozenset[int]) -> None:
    """Keeps every thread of a process on these cores; threads it starts later follow."""
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:
            continue


def stay(cores: frozenset[int]) -> None:
    """Keeps this process, and the generators it starts from now on, on these cores."""
    move(os.getpid(), cores)
