"""Frees what the frames of an error hold.

The traceback of a failed load holds the frames in which it failed, and those hold tensors: the device's memory would
stay taken while the error is reported.
"""

from __future__ import annotations

import traceback


def forget_frames(error: BaseException) -> None:
    """Clears the frames of an error, and of the errors behind it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if each.__traceback__ is not None:
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
        left += [each.__cause__, each.__context__]
