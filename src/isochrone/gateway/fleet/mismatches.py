"""Endpoints that have a committed version with another digest: they get no requests for it. Pure.

Asked ten times a second for every endpoint. So what was found is kept by index, which endpoints share, and after a
commit only the models that it changed are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isochrone.gateway.placement.balancer import is_committed

if TYPE_CHECKING:
    from isochrone.gateway.fleet.commitment import Commitment

#: Indexes of which the results are kept; and comparisons made at once after a commit, some 0.5 µs each.
_MOST, _MOST_AT_ONCE = 4096, 512


class Mismatches:
    """The mismatches of one fleet."""

    def __init__(self) -> None:
        self._committed: Mapping[str, Commitment] = {}
        #: By identity of an index: itself, and by model what differs.
        self._found: dict[int, tuple[Mapping[str, Mapping[str, str]], dict[str, str]]] = {}

    def knows(self, serves: Mapping[str, Mapping[str, str]], committed: Mapping[str, Commitment]) -> bool:
        """Whether ``of`` has the result at hand, but for the models that a commit has changed."""
        if committed is not self._committed:
            self._commit(committed)
        return id(serves) in self._found

    def of(self, serves: Mapping[str, Mapping[str, str]], committed: Mapping[str, Commitment]) -> str:
        """The models of which an endpoint has other files than committed; "": none."""
        if committed is not self._committed:
            self._commit(committed)
        known = self._found.get(id(serves))
        if known is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            known = self._found[id(serves)] = serves, {}
            _look(*known, committed)
        found = known[1]
        return f"other files or another config.pbtxt of {', '.join(found.values())}" if found else ""

    def _commit(self, committed: Mapping[str, Commitment]) -> None:
        before, self._committed = self._committed, committed
        changed = {name: each for name, each in committed.items() if before.get(name) is not each}
        if len(changed) * len(self._found) > _MOST_AT_ONCE or before.keys() - committed.keys():
            self._found.clear()
        for serves, found in self._found.values():
            for name in changed:
                found.pop(name, None)
            _look(serves, found, changed)


def _look(serves: Mapping[str, Mapping[str, str]], found: dict[str, str], committed: Mapping[str, Commitment]) -> None:
    for model, commitment in committed.items():
        digest, wanted = serves.get(model, {}).get(commitment.version), commitment.digests.get(commitment.version, "")
        if digest is not None and not is_committed(digest, wanted):
            found[model] = f"{model} {commitment.version} (digest {digest[:12] or 'unknown'}, committed {wanted[:12]})"
