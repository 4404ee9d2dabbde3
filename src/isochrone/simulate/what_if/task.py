"""What the process that answers a question is given, and what it says instead of an answer. Imports little: the
controller does not load the simulator.
"""

from __future__ import annotations

import msgspec

from isochrone.control.what_if.situation import Situation


class WhatIfTask(msgspec.Struct, frozen=True):
    """What the process is given."""

    situation: Situation
    questions: tuple[str, ...]
    seed: int
    #: Simulated ones; None: as many as the budget allows.
    seconds: float | None
    #: Seconds in which the question should be answered, and after which the process ends.
    budget: float
    deadline: float
    #: The instant that the budget begins at, of the machine's monotonic clock; None: when the process has started.
    began: float | None = None


class WhatIfFailure(msgspec.Struct, frozen=True):
    """What it says instead of an answer."""

    error: str
    is_callers: bool
