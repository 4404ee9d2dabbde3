"""The process that answers one question: a request as JSON on its standard input, the answer on its standard output.

It computes for a few seconds and must not be in the controller's way: it runs at a low priority, its memory is limited,
and it is the first to be ended where the machine's memory runs out. It ends when its deadline has passed whatever
happened to the process that started it.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.simulate.what_if.answering import Budget, answer
from isochrone.simulate.what_if.task import WhatIfFailure, WhatIfTask

#: Added to its nice value.
_NICE = 5
#: Seconds that a simulation has, however long its process took to start.
_LEAST_SECONDS = 0.5
#: Bytes that it may take, beside what the interpreter and its libraries have taken when it starts.
MOST_MEMORY = 2**30
#: The highest there is: the kernel ends it before others.
_OOM_SCORE = 1000


_TOO_LARGE = (
    f"the simulation needs more than {MOST_MEMORY >> 20} MiB of memory: ask about less load, fewer seconds or fewer "
    "workers, or run 'isochrone what-if --situation FILE' on another machine"
)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=WhatIfTask)
    # Ends the process from a thread of its own, even while the interpreter is busy.
    faulthandler.dump_traceback_later(task.deadline, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    os.nice(_NICE)
    _limit_memory(MOST_MEMORY)
    found: Any
    try:
        found = answer(task.situation, task.questions, task.seed, task.seconds, _budget(task))
    except IsochroneError as error:
        found = WhatIfFailure(error.message, isinstance(error, InvalidArgument))
    except MemoryError:
        found = WhatIfFailure(_TOO_LARGE, False)
    sys.stdout.buffer.write(msgspec.json.encode(found))


def _budget(task: WhatIfTask) -> Budget:
    """What remains of the task's. On a busy machine, a late answer is better than none."""
    gone = time.monotonic() - task.began if task.began is not None else 0.0
    return Budget(time.monotonic, max(_LEAST_SECONDS, task.budget - gone), max(task.budget, task.deadline - gone - 1.0))


def _limit_memory(most: int) -> None:
    # Only Linux has these files. Where a limit cannot be set, the simulation's own limits remain.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    with suppress(OSError, ValueError):
        # Not 1 GiB in all: when they are imported, libraries reserve address space for every core.
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + most
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
