"""Busy neighbours: a process on each core that computes without a pause, as another tenant of the machine would."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True:\n    sum(range(1000))\n"


@contextmanager
def neighbours(cores: Iterable[int]) -> Iterator[None]:
    """They end with the block."""
    processes = [subprocess.Popen([sys.executable, "-c", _LOOP, str(core)], stdin=subprocess.DEVNULL) for core in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
