"""An edge that computes slower than the core on the same machine: its processor has no AVX (``older_processor.c``).

Quotas of cgroups cannot do that here: the kernel enforces them at its ticks, 4 ms apart on most machines, so that a
stage of 3 ms runs at full speed and one of 8 ms is stopped for long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("older_processor.c")
NEEDED = "an older processor for the edge needs Linux on x86 with the flag cpuid_fault in /proc/cpuinfo, and cc"


def older_processor(directory: Path) -> dict[str, str]:
    """Environment variables of a process that gets it. Raises ``OSError`` with what is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    if compiler is None or "cpuid_fault" not in flags.split():
        raise OSError(f"{NEEDED}: {'no compiler' if compiler is None else 'no such flag'}")
    library = directory / "older_processor.so"
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], capture_output=True, text=True
    )
    if built.returncode:
        raise OSError(f"{compiler} failed: {built.stderr.strip()[-500:]}")
    environment = {"LD_PRELOAD": str(library)}
    tried = subprocess.run(["true"], env={**os.environ, **environment}, capture_output=True)
    if tried.returncode:
        raise OSError(f"{NEEDED}: the kernel does not let a process trap CPUID")
    return environment
