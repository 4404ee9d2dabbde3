"""The files that the process of a model may read: the interpreter's, the libraries' and the model's own.

Nothing here holds a secret: no /etc but what the loader and the C library need, nothing of another process or model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from isochrone.secure.sandbox.files.landlock import FULL, READ, READ_AND_EXECUTE, READ_AND_WRITE, Rule

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda")
_SYSTEM = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/usr/share/locale",
    "/dev/urandom",
    "/dev/random",
    # What runtimes read to choose kernels of code and numbers of threads.
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm",
    "/sys/bus/pci/devices",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
)
_NETWORK = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/services",
    "/etc/gai.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
)
_PROGRAMS = ("/bin", "/usr/bin", "/usr/local/bin", "/usr/include", "/usr/share/misc")


def python_directories(path: Sequence[str], prefixes: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The directories that a model's process imports and links from, without those inside of others.

    ``path``: of a process that was started with -P, so that neither the working directory nor a script's is in it.
    """
    given = [*path, *(os.path.join(prefix, "lib") for prefix in prefixes)]
    given += environment.get("LD_LIBRARY_PATH", "").split(":")
    found = {os.path.realpath(each) for each in given if each and os.path.exists(each)}
    return tuple(sorted(each for each in found if not any(is_within(each, other) for other in found if other != each)))


def own_python_directories() -> tuple[str, ...]:
    """Those of the processes that this one starts."""
    # Without -P, the first entry is the script's directory or the working directory.
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    return python_directories(path, (sys.prefix, sys.base_prefix, sys.exec_prefix), os.environ)


def readable_directories(python: Iterable[str]) -> tuple[str, ...]:
    """Every directory whose files any model may read."""
    return (*python, *(os.path.realpath(each) for each in _LIBRARIES))


def rules(model: str, python: Iterable[str], pid: int, *, scratch: str, network: bool, processes: bool) -> list[Rule]:
    """``model``: the directory of the model; ``scratch``: where it may write; "": nowhere."""
    code = READ_AND_EXECUTE if processes else READ
    found = [Rule(path, code) for path in (*python, *_LIBRARIES)]
    found += [Rule(path, READ) for path in (model, *_SYSTEM, f"/proc/{pid}")]
    found += [Rule("/dev/null", READ_AND_WRITE)]
    found += [Rule(path, READ) for path in _NETWORK] if network else []
    if processes:
        found += [
            Rule(path, READ_AND_EXECUTE) for path in (*_PROGRAMS, sys.executable, os.path.realpath(sys.executable))
        ]
    return found + ([Rule(scratch, FULL)] if scratch else [])


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a directory or beneath it; both without links."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
