"""When a worker would send the tokens of one more request, by its recent load report, and whether in time. Pure.

There are two predictions of the first token. That of a prompt of the mean length says which worker to prefer. That of
the shortest prompt says which worker cannot be in time, whatever the prompt, whose tokens the gateway does not know. In
between, the worker decides.
"""

from __future__ import annotations

from typing import NamedTuple

from isochrone.gateway.replicas import FRESH_NS, Replica

#: Ranks of an estimate beside deadlines.
IN_TIME, MAY_BE_IN_TIME, LATE = 0, 1, 2


class TokenEstimate(NamedTuple):
    """In ns, from now on."""

    #: Until the first token, of a prompt of the mean length and of the shortest one.
    first_ns: float
    least_first_ns: int
    between_ns: int

    def rank(self, limit: int, between_ns: int) -> int:
        """``limit``: ns until the first token is due; ``between_ns``: the most between two tokens, 0: any time."""
        if self.least_first_ns > limit or self.between_ns > between_ns > 0:
            return LATE
        return IN_TIME if self.first_ns <= limit else MAY_BE_IN_TIME

    def missed_by(self, limit: int, between_ns: int) -> float:
        """How late the first token would be, or each further one, whichever is more."""
        first = max(0.0, self.first_ns - limit)
        return max(first, float(self.between_ns - between_ns)) if between_ns else first


def token_estimate(replica: Replica, now: int) -> TokenEstimate | None:
    """None: the worker has sent no recent load report, or the model does not generate."""
    if replica.endpoint.last_report_at > replica.reported_at:
        replica.take_report()
    report = replica.report
    if not report.inter_token_ns or now - replica.times_at > FRESH_NS:
        return None
    # Each that was sent since then goes before it. Unlike a queue's wait, that of a prompt does not pass with time.
    since = replica.sent_since * report.wait_ns / max(1, report.in_flight)
    return TokenEstimate(report.wait_ns + since, report.least_wait_ns, report.inter_token_ns)
