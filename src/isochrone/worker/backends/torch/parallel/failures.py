"""What a failure in some ranks of an instance means: an error of one batch, or the end of the instance.

Ranks that fail alike, at the same place of the code with the same words, are out of all collectives, and the instance
goes on: bad input does that. Otherwise a rank may be inside a collective, or about to enter one that another has left,
and the next batch could mix with this one.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

from isochrone.errors import ConfigError, IsochroneError
from isochrone.worker.backends.devices.errors import device_error
from isochrone.worker.backends.processes.child_side import traceback_of
from isochrone.worker.backends.torch.error_text import error_text
from isochrone.worker.backends.torch.parallel.messages import Failure

if TYPE_CHECKING:
    from isochrone.worker.backends.torch.parallel.layout import Layout

#: What messages of torch's communication have in them: gloo's errors are plain RuntimeErrors.
_OF_COMMUNICATION = ("gloo", "nccl", "c10d", "process group")


def failure_of(error: BaseException, *, is_fatal: bool) -> Failure:
    """Describes an exception; ``is_fatal``: it is not one of the model's code."""
    place = " ".join(f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, ConfigError):
        parts = [error.where, error.key, error.expected, error.given]
        return Failure(str(error), parts, place, traceback_of(error), is_fatal)
    if isinstance(error, IsochroneError):
        return Failure(str(error), [], place, traceback_of(error), is_fatal)
    said = str(error).lower()
    # A process that has lost its GPU fails from now on.
    is_fatal = is_fatal or any(word in said for word in _OF_COMMUNICATION) or device_error(error) is not None
    message = f"torch: {error_text(error)}" if isinstance(error, Exception) else type(error).__name__
    return Failure(message, [], place, traceback_of(error), is_fatal)


def first_failure(failures: Mapping[int, Failure]) -> Failure:
    """The failure to report: that of the first rank whose own code failed."""
    ranks = sorted(failures, key=lambda rank: (failures[rank].is_fatal, rank))
    return failures[ranks[0]]


def ends_instance(layout: Layout, failures: Mapping[int, Failure]) -> bool:
    """Whether the ranks may be out of step. ``failures``: of the ranks that failed; all others have finished."""
    for stage in {layout.stage_of(rank) for rank in failures}:
        alike = {_likeness(failures[rank]) if rank in failures else None for rank in layout.ranks_of(stage)}
        if len(alike) > 1:
            return True
    return any(failure.is_fatal for failure in failures.values())


def _likeness(failure: Failure) -> tuple[str, str]:
    return failure.message, failure.place
