"""An epoch that is about to be committed, and which models it changes: found in steps before the commit. Pure.

A commit happens in one turn of the loop. It looks at the models it changes, not at all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import NamedTuple

from isochrone.gateway.fleet.commitment import Commitment

#: Models compared in one step: some 0.3 µs each.
_COMPARED_PER_STEP = 1024


class PreparedEpoch(NamedTuple):
    """``before``: the epochs it was compared with; ``changed``: models that are not the same in all of them."""

    committed: Mapping[str, Commitment]
    before: Sequence[Mapping[str, Commitment]]
    changed: Collection[str]

    def is_up_to_date(self, epochs: Sequence[Mapping[str, Commitment]]) -> bool:
        """Whether these are the epochs that it was compared with."""
        return len(self.before) == len(epochs) and all(map(_is_same, self.before, epochs))


def prepare(
    committed: Mapping[str, Commitment], before: Sequence[Mapping[str, Commitment]]
) -> Generator[None, None, PreparedEpoch]:
    """Compare an epoch with those before it that still count."""
    changed: dict[str, None] = {} if before else dict.fromkeys(committed)
    compared = 0
    for known in before:
        # Unchanged commitments are the same object.
        for one, other in ((committed, known), (known, committed)):
            for name, commitment in one.items():
                if other.get(name) is not commitment:
                    changed[name] = None
                compared += 1
                if compared >= _COMPARED_PER_STEP:
                    compared = 0
                    yield
    return PreparedEpoch(committed, before, changed)


def _is_same(one: object, other: object) -> bool:
    return one is other
