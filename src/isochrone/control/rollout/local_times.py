"""The times in a rollout's record, translated to this leader's clock. Pure: the caller passes the time.

The times in a record are wall-clock times of the controller that wrote them, for display. Time-outs depend on durations
that this leader has observed itself: a clock that is an hour ahead on one machine must neither fail a rollout nor make
the next leader wait.
"""

from __future__ import annotations

import msgspec

from isochrone.control.state.rollout_records import RolloutRecord


class LocalTimes:
    """One leader's. Its time is the wall-clock time at its start plus the monotonic time since, so that the times it
    writes are readable."""

    def __init__(self, wall: float, monotonic: float) -> None:
        self._offset = wall - monotonic
        #: (rollout, mark, stamp) → when it was first seen here.
        self._seen: dict[tuple[str, str, float], float] = {}

    def now(self, monotonic: float) -> float:
        return self._offset + monotonic

    def localised(self, record: RolloutRecord, now: float) -> RolloutRecord:
        """The record with its times on this leader's clock: when each was first seen here."""
        since = {
            mark: self._seen.setdefault((record.identity, mark, stamp), now) for mark, stamp in record.since.items()
        }
        return msgspec.structs.replace(record, since=since)

    def restored(self, record: RolloutRecord, local: RolloutRecord, after: RolloutRecord) -> RolloutRecord:
        """The record to write: times that the decision did not change are restored; new ones are this leader's."""
        since = {}
        for mark, stamp in after.since.items():
            if local.since.get(mark) == stamp:
                since[mark] = record.since[mark]
            else:
                since[mark] = stamp
                self._seen[record.identity, mark, stamp] = stamp
        return msgspec.structs.replace(after, since=since)

    def keep_only(self, identities: set[str]) -> None:
        """Forget the rollouts that are over."""
        self._seen = {key: at for key, at in self._seen.items() if key[0] in identities}
