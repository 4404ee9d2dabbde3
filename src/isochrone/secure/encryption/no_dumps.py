"""No crash dump of this process and those that it starts: it would hold keys and plain models."""

from __future__ import annotations

import contextlib
import resource


def forbid_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # That limit does not hold for a program that takes dumps (``|`` in core_pattern): this one does, for every mapping.
    with contextlib.suppress(OSError), open("/proc/self/coredump_filter", "w") as file:
        file.write("0")
