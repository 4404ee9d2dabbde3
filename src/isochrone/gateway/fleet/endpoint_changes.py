"""What has changed about endpoints since a model last looked: their states, and load reports of whole endpoints. Pure.

An endpoint serves many models. A change costs the same however many: it is kept here under a revision, and a replica
set that is about to place a request takes what is newer than the revision it has seen. A model without requests costs
nothing. Of each endpoint the last load report is kept: it replaces the ones before. Policies that go by reports get
them from the replica set; a replica itself takes its endpoint's report when it is looked at (``Replica.take_report``).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from isochrone.clock import NEVER
from isochrone.gateway.replicas import Endpoint, EndpointReport, Replica


class EndpointChanges:
    """The changes of one fleet's endpoints."""

    __slots__ = ("_reports", "_states", "look_due", "looked_at", "replicas_made", "revision", "state_revision")

    def __init__(self) -> None:
        #: Of the last change of any kind, and of the last change of an endpoint's state.
        self.revision = self.state_revision = 0
        #: When ``look`` was called last. What is refreshed after it must not go by an earlier instant: the end of an
        #: ejection is a change once, and no later look finds it again.
        self.looked_at = 0
        #: Before this instant, a look finds nothing new: no ejection and no slow start ends.
        self.look_due = 0
        #: Replicas that were made so far, of all models.
        self.replicas_made = 0
        #: The last report of each endpoint, the newest last.
        self._reports: dict[Endpoint, EndpointReport] = {}
        #: The states that ``look`` found last.
        self._states: list[tuple[Endpoint, bool, bool, bool, bool, int, int]] = []

    def look(self, endpoints: Iterable[Endpoint], now: int, slow_start_ns: int, *, memory: bool) -> None:
        """Compare the endpoints with the last look. ``memory``: some model asks for free memory.

        While an endpoint starts slowly, its weight grows: that is a change every time.
        """
        self.looked_at = now
        youngest = now - slow_start_ns
        states = [
            (
                each,
                each.healthy,
                each.draining or each.standby,
                each.ejected_until > now,
                each.joined_at > youngest,
                each.joined_at,
                each.free_memory if memory else 0,
            )
            for each in endpoints
        ]
        if states != self._states or any(state[4] for state in states):
            self._states = states
            self.states_changed()
        ends = (
            state[0].ejected_until if state[3] else state[5] + slow_start_ns for state in states if state[3] or state[4]
        )
        # Load reports change the free memory, and mark nothing.
        self.look_due = 0 if memory else min(ends, default=NEVER)

    def states_changed(self) -> None:
        """Which replicas are eligible, or their weights, may have changed."""
        self.revision += 1
        self.state_revision = self.revision
        # An ejection or a slow start may have begun.
        self.look_due = 0

    def reported(self, report: EndpointReport) -> None:
        self.revision += 1
        report.revision = self.revision
        endpoint = report.endpoint
        endpoint.last_report, endpoint.last_report_at = report, report.at
        self._reports.pop(endpoint, None)
        self._reports[endpoint] = report

    def forget(self, endpoint: Endpoint) -> None:
        """It has left the fleet."""
        self._reports.pop(endpoint, None)

    def reports_since(self, revision: int) -> list[EndpointReport]:
        """The reports that came after a revision, in the order they came."""
        found = []
        for report in reversed(self._reports.values()):
            if report.revision <= revision:
                break
            found.append(report)
        found.reverse()
        return found

    def reports_of(self, replicas: Iterable[Replica], revision: int) -> list[EndpointReport]:
        """The same, of the endpoints of some replicas."""
        found = []
        for replica in replicas:
            report = self._reports.get(replica.endpoint)
            if report is not None and report.revision > revision:
                found.append(report)
        found.sort(key=attrgetter("revision"))
        return found
