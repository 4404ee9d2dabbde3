"""The number by which an engine knows a process again in the store: its pid, or the number that its engine gave it.

In containers every process has the same pid, so the Kubernetes engine numbers its pods.
"""

from __future__ import annotations

import os

PROCESS_VARIABLE = "ISOCHRONE_PROCESS"


def process_number() -> int:
    given = os.environ.get(PROCESS_VARIABLE, "")
    return int(given) if given.isdecimal() else os.getpid()
