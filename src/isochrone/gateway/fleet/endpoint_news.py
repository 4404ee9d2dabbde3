"""What has changed about endpoints since a model last looked: their states, and load reports of whole endpoints. Pure.

An endpoint serves many models. A change costs the same however many: it is kept here under a revision, and a replica
set that is about to place a request takes what is newer than the revision it has seen. A model without requests costs
nothing. Of each endpoint the last load report is kept: it replaces the ones before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isochrone.gateway.replicas import Endpoint, LoadReport, Replica


class EndpointReport:
    """A worker's answer to a probe: of its load alone, not of a model's."""

    __slots__ = ("at", "endpoint", "report", "revision")

    def __init__(self, endpoint: Endpoint, report: LoadReport, at: int) -> None:
        self.endpoint = endpoint
        self.report = report
        self.at = at
        self.revision = 0

    def of(self, replica: Replica, model: str) -> LoadReport:
        """What it says of one replica. A probe reports no times of a model: those of the last answer are kept.

        The wait is a time from then on, so what has passed of it is over; a probe must not make it new.
        """
        report, known = self.report, replica.report
        wait_ns = max(0, known.wait_ns - (self.at - replica.reported_at)) if report.queue else 0
        return LoadReport(
            report.in_flight,
            report.queue,
            wait_ns,
            known.run_ns,
            known.alone_ns,
            report.free_memory,
            report.draining,
        )


class PendingReport(EndpointReport):
    """A server's metrics page: how many requests of each model wait there, from everybody."""

    __slots__ = ("_everybody", "_pending")

    def __init__(self, endpoint: Endpoint, pending: Mapping[str, int], at: int) -> None:
        super().__init__(endpoint, LoadReport(0, 0), at)
        self._pending = pending
        self._everybody = sum(pending.values())

    def of(self, replica: Replica, model: str) -> LoadReport:
        return LoadReport(max(self.endpoint.in_flight, self._everybody), self._pending.get(model, 0))


class EndpointNews:
    """The news of one fleet."""

    __slots__ = ("_reports", "_states", "revision", "state_revision")

    def __init__(self) -> None:
        #: Of the last change of any kind, and of the last change of an endpoint's state.
        self.revision = self.state_revision = 0
        #: The last report of each endpoint, the newest last.
        self._reports: dict[Endpoint, EndpointReport] = {}
        #: The states that ``look`` found last.
        self._states: list[tuple[Endpoint, bool, bool, bool, bool, int, int]] = []

    def look(self, endpoints: Iterable[Endpoint], now: int, slow_start_ns: int, *, memory: bool) -> None:
        """Compare the endpoints with the last look. ``memory``: some model asks for free memory.

        While an endpoint starts slowly, its weight grows: that is a change every time.
        """
        youngest = now - slow_start_ns
        states = [
            (
                each,
                each.healthy,
                each.draining,
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

    def states_changed(self) -> None:
        """Which replicas are eligible, or their weights, may have changed."""
        self.revision += 1
        self.state_revision = self.revision

    def reported(self, report: EndpointReport) -> None:
        self.revision += 1
        report.revision = self.revision
        self._reports.pop(report.endpoint, None)
        self._reports[report.endpoint] = report

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
