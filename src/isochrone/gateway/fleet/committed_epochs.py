"""The epochs that a control plane has committed, as far as a gateway keeps them: the last two.

Requests go by the last one. Of the one before, requests may still be under way, and callers may ask for it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping

from isochrone.errors import InvalidArgument, NotFound, Unavailable
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.prepared_epoch import PreparedEpoch, prepare
from isochrone.gateway.housekeeping import finished

#: Epochs that callers may ask for, and whose versions keep their replica sets.
_KEPT = 2


class CommittedEpochs:
    """By epoch, what is committed of each model."""

    def __init__(self) -> None:
        #: The last one last.
        self._kept: dict[int, Mapping[str, Commitment]] = {}
        #: 0: nothing is committed yet.
        self.last = 0

    @property
    def models(self) -> Mapping[str, Commitment]:
        """What holds from now on."""
        return self._kept.get(self.last, {})

    def prepare(self, committed: Mapping[str, Commitment]) -> Generator[None, None, PreparedEpoch]:
        """Find in steps what a commit will change; nothing changes yet."""
        return prepare(committed, tuple(self._kept.values()))

    def commit(
        self, epoch: int, committed: Mapping[str, Commitment], prepared: PreparedEpoch | None
    ) -> Collection[str]:
        """The models that change. ``prepared`` counts unless another epoch has been committed since."""
        before = tuple(self._kept.values())
        if prepared is None or prepared.committed is not committed or not prepared.is_up_to_date(before):
            prepared = finished(prepare(committed, before))
        # Last, whatever its number: it is what holds from now on.
        self._kept.pop(epoch, None)
        self._kept[epoch] = committed
        self.last = epoch
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return prepared.changed

    def digest(self, model: str, version: str) -> str:
        """What a worker must serve as a version; "": whatever it does."""
        for epoch in reversed(self._kept.values()):
            commitment = epoch.get(model)
            if commitment is not None and version in commitment.digests:
                return commitment.digests[version]
        return ""

    def replica_sets(self, model: str) -> set[tuple[str, bytes]]:
        """Versions, with their stages, that requests may still go by."""
        return {
            (version, commitment.stages.get(version, b""))
            for epoch in self._kept.values()
            if (commitment := epoch.get(model)) is not None
            for version in commitment.digests
        }

    def at(self, epoch: bytes, model: str) -> Commitment:
        """What an epoch that a caller has seen says of a model."""
        text = epoch[:20].decode("latin-1")
        if not epoch.isdigit() or len(epoch) > 18:
            raise InvalidArgument(f"x-isochrone-epoch: expected a number or 'current', given '{text}'")
        number = int(epoch)
        if number not in self._kept:
            kept = " and ".join(map(str, self._kept)) or "none"
            if number > self.last:
                raise Unavailable(f"epoch {text} has not reached this gateway yet, which serves {kept}; try again")
            raise NotFound(f"epoch {text} is not served any more; this gateway serves {kept}")
        commitment = self._kept[number].get(model)
        if commitment is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found in epoch {number}")
        return commitment
