"""What a gateway knows of each worker: its load reports, and what was measured here. Pure records.

An ``Endpoint`` is one worker. A ``Replica`` is one model version on one endpoint: policies choose among replicas. The
gateway and the simulator both keep them, by the same three calls: ``sent``, ``ended``, ``reported``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: A load report is used for this long.
FRESH_NS = 100_000_000
#: Weight of one observation in running means.
_GAIN = 1 / 16
#: Loads at which latency is remembered: 0, 1, 2, 3–4, 5–8, … requests in flight.
_LOAD_CLASSES = 16


class LoadReport(NamedTuple):
    """A worker's report of its load, from an answer or a probe."""

    #: Requests in flight on it from everybody, all models.
    in_flight: int
    #: Of those, requests that wait for an instance.
    queue: int
    #: Until a new request of the model would start, and how long a run with it would take. 0: not reported.
    wait_ns: int = 0
    run_ns: int = 0
    #: How long a run of that request alone would take: the least there can be. 0: not reported.
    alone_ns: int = 0
    #: Bytes; -1: not reported.
    free_memory: int = -1
    draining: bool = False
    #: Of a model that generates: the time between tokens with one more request (0: not reported, or another model), and
    #: until the first token of the shortest prompt; ``wait_ns`` is that of a prompt of the mean length.
    inter_token_ns: int = 0
    least_wait_ns: int = 0
    #: Of a divided model: how long a request would take, waits included, by kind in the order of ``DIVISION_KINDS``;
    #: 0: that kind is not offered. None: not reported, or another model.
    divisions: tuple[int, ...] | None = None


NO_REPORT = LoadReport(0, 0)


class EndpointReport:
    """A worker's answer to a probe: of its load alone, not of a model's."""

    __slots__ = ("at", "endpoint", "report", "revision")

    def __init__(self, endpoint: Endpoint, report: LoadReport, at: int) -> None:
        self.endpoint = endpoint
        self.report = report
        self.at = at
        #: Kept by ``endpoint_changes``.
        self.revision = 0

    def of(self, replica: Replica) -> LoadReport:
        """What it says of one replica. A probe reports no times of a model: those of the last answer are kept.

        The wait is a time from then on, so what has passed of it is over; a probe must not make it new.
        """
        report, known = self.report, replica.report
        if known.inter_token_ns:
            return self._of_generating(known)
        wait_ns = max(0, known.wait_ns - (self.at - replica.reported_at)) if report.queue and known.wait_ns else 0
        if not (wait_ns or known.run_ns or known.alone_ns or report.wait_ns or report.run_ns or report.alone_ns):
            if report.divisions is not known.divisions:
                report = report._replace(divisions=known.divisions)
            return report if not report.inter_token_ns else report._replace(inter_token_ns=0)
        in_flight, queue, _, _, _, free_memory, draining, _, _, _ = report
        if known.divisions is not None:
            return LoadReport(
                *(in_flight, queue, wait_ns, known.run_ns, known.alone_ns, free_memory, draining),
                divisions=known.divisions,
            )
        return LoadReport(in_flight, queue, wait_ns, known.run_ns, known.alone_ns, free_memory, draining)

    def renews_tokens(self, known: LoadReport) -> bool:
        """Whether it says all that is known of tokens. A longer time may be that of another model."""
        report = self.report
        return 0 < report.inter_token_ns <= known.inter_token_ns and report.wait_ns <= known.wait_ns

    def _of_generating(self, known: LoadReport) -> LoadReport:
        """Of a replica that generates. The worker's times are the longest of its models: this one's are no longer.

        A worker that reports none, such as a gateway, says nothing of this one's.
        """
        report = self.report
        if not report.inter_token_ns:
            return report._replace(
                wait_ns=known.wait_ns, inter_token_ns=known.inter_token_ns, least_wait_ns=known.least_wait_ns
            )
        wait_ns = min(known.wait_ns, report.wait_ns)
        return report._replace(
            wait_ns=wait_ns,
            inter_token_ns=min(known.inter_token_ns, report.inter_token_ns),
            least_wait_ns=min(known.least_wait_ns, wait_ns),
        )


class PendingReport(EndpointReport):
    """A server's metrics page: how many requests of each model wait there, from everybody."""

    __slots__ = ("_everybody", "_pending")

    def __init__(self, endpoint: Endpoint, pending: Mapping[str, int], at: int) -> None:
        super().__init__(endpoint, NO_REPORT, at)
        self._pending = pending
        self._everybody = sum(pending.values())

    def of(self, replica: Replica) -> LoadReport:
        return LoadReport(max(self.endpoint.in_flight, self._everybody), self._pending.get(replica.model, 0))


class Endpoint:
    """One worker, whatever it serves."""

    __slots__ = (
        "address",
        "asked_at",
        "device",
        "draining",
        "ejected_until",
        "free_memory",
        "handle",
        "healthy",
        "heard_at",
        "in_flight",
        "joined_at",
        "last_report",
        "last_report_at",
        "region",
        "removed",
        "reports",
        "standby",
        "tier",
    )

    def __init__(self, address: str, *, tier: str = "", device: str = "", region: str = "", now: int = 0) -> None:
        #: host:port; names the endpoint everywhere.
        self.address = address
        self.tier = tier
        self.device = device
        self.region = region
        #: Requests from this gateway under way on it, all models.
        self.in_flight = 0
        #: By active checks and connections; outlier ejection is ``ejected_until``.
        self.healthy = True
        self.draining = False
        #: Its control plane keeps it for later: it gets no requests.
        self.standby = False
        #: It does not belong to the fleet any more.
        self.removed = False
        self.ejected_until = 0
        self.free_memory = -1
        #: When it became healthy, for slow start.
        self.joined_at = now
        #: It tells its load with its answers, so that it is asked to.
        self.reports = False
        #: When it was last asked, for any of its models.
        self.asked_at = 0
        #: When anything at all last came from it: an answer, a probe's answer.
        self.heard_at = 0
        #: Its last report that came without an answer, for its replicas to take; and when that came (0: never).
        self.last_report: EndpointReport | None = None
        self.last_report_at = 0
        #: The shell's own: what it sends through.
        self.handle: Any = None

    def __repr__(self) -> str:
        return f"<Endpoint {self.address}>"


class Replica:
    """One model on one endpoint, as policies see it."""

    __slots__ = (
        "_by_load",
        "asked_at",
        "breaker",
        "digest",
        "divisions",
        "endpoint",
        "error_rate",
        "in_flight",
        "latency_ns",
        "model",
        "peak_ns",
        "report",
        "reported_at",
        "sent_before",
        "sent_since",
        "times_at",
        "weight",
        "well",
        "well_ns",
    )

    def __init__(self, endpoint: Endpoint, weight: float = 1.0, model: str = "") -> None:
        self.endpoint = endpoint
        self.model = model
        #: Share of traffic relative to others, below 1 while it starts slowly.
        self.weight = weight
        #: Requests of this model from this gateway under way on it.
        self.in_flight = 0
        #: Its last load report, when that came (0: never), and how many requests were sent to it since.
        self.report = NO_REPORT
        self.reported_at = 0
        self.sent_since = 0
        #: From when the report's times of tokens or of divisions are: a probe may bring a new report without new ones.
        self.times_at = 0
        #: Of a divided model: requests sent since then and before the report.
        self.sent_before = 0
        #: Measured here: running mean of latency, 0 before the first answer.
        self.latency_ns = 0.0
        #: Latency that jumps up and decays.
        self.peak_ns = 0.0
        #: Running share of failures, 0 to 1.
        self.error_rate = 0.0
        #: Of the version it serves; "": not known.
        self.digest = ""
        #: Its circuit breaker, after failures; and answers that outlier detection has not counted yet.
        self.breaker: Any = None
        #: Of a divided model: which divisions were left there; None: nothing is remembered.
        self.divisions: Any = None
        #: When its load was last asked for.
        self.asked_at = 0
        self.well = 0
        self.well_ns = 0
        #: Mean latency by requests in flight when they were sent; None: nothing is known. A gateway may have a hundred
        #: thousand replicas, and few of them are used.
        self._by_load: list[float] | None = None

    def __repr__(self) -> str:
        return f"<Replica {self.endpoint.address} in_flight={self.in_flight}>"

    # Events.

    def sent(self) -> int:
        """A request goes to it; returns the load it was sent at, which ``ended`` wants back."""
        if self.endpoint.last_report_at > self.reported_at:
            self.take_report()
        self.endpoint.in_flight += 1
        self.in_flight += 1
        self.sent_since += 1
        return self.in_flight

    def ended(self, load: int, latency_ns: int, failed: bool, now: int) -> None:
        """A request is over. The latency of a failure does not count: a worker that fails fast must not look fast."""
        endpoint = self.endpoint
        endpoint.in_flight -= 1
        self.in_flight -= 1
        if failed:
            self.error_rate += (1.0 - self.error_rate) * _GAIN
            return
        if self.error_rate:
            self.error_rate -= self.error_rate * _GAIN
        known = self.latency_ns
        if known:
            self.latency_ns = known + (latency_ns - known) * _GAIN
            peak = self.peak_ns
            self.peak_ns = latency_ns if latency_ns > peak else peak + (latency_ns - peak) * _GAIN
        else:
            self.latency_ns = self.peak_ns = float(latency_ns)
        if endpoint.reports:
            return
        # It reports no load: the latency at such a load stands in for it.
        index = min(load.bit_length(), _LOAD_CLASSES - 1)
        by_load = self._by_load
        if by_load is None:
            by_load = self._by_load = [0.0] * _LOAD_CLASSES
        seen = by_load[index]
        by_load[index] = seen + (latency_ns - seen) * _GAIN if seen else float(latency_ns)

    def dropped(self) -> None:
        """A request is over and says nothing of the replica: its caller has gone, or a hedge won."""
        self.endpoint.in_flight -= 1
        self.in_flight -= 1

    def reported(self, report: LoadReport, now: int) -> None:
        """A load report came."""
        self.report = report
        self.reported_at = self.times_at = now
        self.sent_since = self.sent_before = 0
        self.endpoint.draining = report.draining
        if report.free_memory >= 0:
            self.endpoint.free_memory = report.free_memory

    def take_report(self) -> None:
        """Take its endpoint's report. Whoever reads the report calls this first, if ``last_report_at`` is later."""
        report = self.endpoint.last_report
        if report is not None:
            if self.report.inter_token_ns and report.renews_tokens(self.report):
                self.times_at = report.at
            if self.report.divisions is not None:
                self.sent_before += self.sent_since
            self.report = report.of(self)
            self.reported_at = report.at
            self.sent_since = 0

    # Estimates for policies.

    def load(self, now: int) -> int:
        """Requests in flight on it: by its report and what was sent since, or from this gateway alone."""
        if self.endpoint.last_report_at > self.reported_at:
            self.take_report()
        if now - self.reported_at <= FRESH_NS and self.reported_at:
            reported = self.report.in_flight + self.sent_since
            return reported if reported > self.in_flight else self.in_flight
        return self.in_flight

    def expected_ns(self, now: int) -> float:
        """How long one more request would take: by its report, or by the latency at such a load; 0: unknown.

        A replica that fails is expected to take longer, in proportion.
        """
        if self.endpoint.last_report_at > self.reported_at:
            self.take_report()
        report = self.report
        run_ns = report.run_ns
        if run_ns and now - self.reported_at <= FRESH_NS:
            expected = float(report.wait_ns + run_ns)
        else:
            index = min((self.in_flight + 1).bit_length(), _LOAD_CLASSES - 1)
            expected = (self._by_load[index] if self._by_load is not None else 0.0) or self.latency_ns
        return expected * (1 + 8 * self.error_rate)
