"""The answer to a control call that was made in several processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isochrone.errors import IsochroneError


def names(numbers: Sequence[int]) -> str:
    """As in "processes 1, 3"."""
    listed = ", ".join(map(str, numbers))
    return f"process {listed}" if len(numbers) == 1 else f"processes {listed}"


def failure(
    failed: Mapping[int, IsochroneError], undone: Sequence[int], differing: Sequence[int], count: int
) -> IsochroneError:
    """The error of a call that failed in some processes.

    ``undone``: it had succeeded there and was taken back; ``differing``: it had succeeded there and could not be.
    """
    first = min(failed)
    error = failed[first]
    if len(failed) == count and len({str(each) for each in failed.values()}) == 1:
        # The same everywhere: the error is the call's, and no process differs.
        return error
    text = f"process {first} of {count}: {error}"
    if undone:
        text += f"; undone in {names(undone)}"
    if differing:
        text += f"; {names(differing)} applied it and may differ until the call is repeated with success"
    shown = error.within("")
    shown.args = (text,)
    return shown
