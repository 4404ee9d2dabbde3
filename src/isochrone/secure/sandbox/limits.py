"""Limits of one process: memory, files, threads, and its place when processor time or memory runs short."""

from __future__ import annotations

import os
import resource

#: Of one file: a response block among them, so also of the outputs of one run.
_FILE_BYTES = 1 << 30
_OPEN_FILES = 1024
#: Processes and threads of its user.
_TASKS = 1024
#: The process yields to the worker, whose event loop answers the callers of every model.
_NICENESS = 5


def apply(memory_bytes: int) -> None:
    """For ever: the hard limits are lowered, too."""
    # No crash dump: it would hold the inputs of callers.
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_FSIZE, _FILE_BYTES)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    os.nice(_NICENESS)
    _offer_to_the_oom_killer()


def limit_tasks() -> None:
    """Only of a process with a user, or a user namespace, of its own: the kernel counts those of the user."""
    _limit(resource.RLIMIT_NPROC, _TASKS)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _offer_to_the_oom_killer() -> None:
    """If the machine runs out of memory, the kernel ends models before the worker."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def machine_memory() -> int:
    """Bytes of this machine, or of the container if that has a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
