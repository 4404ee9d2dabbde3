"""The process that answers one question: a request as JSON on its standard input, the answer on its standard output.

It computes for a few seconds and must not be in the controller's way: it runs at a low priority, has a deadline of its
own, and ends when its deadline has passed whatever happened to the process that started it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import Any

import msgspec

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.simulate.what_if.answering import Budget, answer
from isochrone.simulate.what_if.task import WhatIfFailure, WhatIfTask

#: Added to its nice value.
_NICE = 5


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=WhatIfTask)
    # Ends the process from a thread of its own, even while the interpreter is busy.
    faulthandler.dump_traceback_later(task.deadline, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    os.nice(_NICE)
    found: Any
    try:
        found = answer(task.situation, task.questions, task.seed, task.seconds, Budget(time.monotonic, task.budget))
    except IsochroneError as error:
        found = WhatIfFailure(error.message, isinstance(error, InvalidArgument))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
