"""Whether requests that could share a batch should. Pure.

A batch is queued or collected, gathered into one tensor, run and split again. For a cheap model or a few requests that
costs more than running each by itself. What each way costs per request is measured here, batches by their size, and the
cheaper one is used; now and then the other way is tried, since costs change with the load.
"""

from __future__ import annotations

#: Time between two trials of the other way, for each class of sizes, and runs of one trial: the first batch of a size
#: is a slow one.
_TRIAL_NS = 200_000_000
_TRIALS = 3
#: A batch must be this much cheaper per request: costs are noisy, and near equality each by itself is the simpler way.
_ADVANTAGE = 1.25
#: Sizes 2, 3–4, 5–8, 9–16, …
_CLASSES = 32


class Gathering:
    """The choice of one model version. Requests share batches until both ways were measured."""

    __slots__ = ("_alone", "_left", "_together", "_tried")

    def __init__(self) -> None:
        #: ns per request, 0: not known: run by itself; and in batches, by class of sizes.
        self._alone = 0.0
        self._together = [0.0] * _CLASSES
        #: When the other way was last taken, and how many times more it will be.
        self._tried = [0] * _CLASSES
        self._left = [0] * _CLASSES

    def pays(self, requests: int, now: int) -> bool:
        """Whether so many requests, two or more, should share a batch. Counts as a trial if one is due."""
        size = (requests - 1).bit_length()
        together, alone = self._together[size], self._alone
        if not together:
            return True
        better = not alone or together * _ADVANTAGE < alone
        if now - self._tried[size] > _TRIAL_NS:
            self._tried[size] = now
            self._left[size] = _TRIALS
        if self._left[size]:
            self._left[size] -= 1
            return not better
        return better

    def would_pay(self, requests: int, nanoseconds: int) -> bool:
        """The same for a batch that is not measured here, since it would run on a thread for so long."""
        return not self._alone or nanoseconds / requests * _ADVANTAGE < self._alone

    def ran_alone(self, nanoseconds: int) -> None:
        """A request ran by itself; ``nanoseconds``: of the loop's time."""
        self._alone = _moved(self._alone, nanoseconds)

    def ran_together(self, requests: int, nanoseconds: int) -> None:
        """A batch ran on the loop's thread."""
        size = (requests - 1).bit_length()
        self._together[size] = _moved(self._together[size], nanoseconds / requests)


def _moved(known: float, seen: float) -> float:
    """A stall of the machine makes a run longer, nothing makes it shorter: down at once, up slowly."""
    return min(seen, known * 1.1) if known else seen
