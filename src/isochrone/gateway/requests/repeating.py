"""The one rule for sending a request again. Pure.

A request of which nothing has run is repeated whatever it is. One that may have run is repeated only where a second run
changes nothing: inference of a stateless model whose rules do not say otherwise.
"""

from __future__ import annotations

from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.resilience.retry_budget import Kind, RetryRules

_MAY_HAVE_RUN = frozenset((Outcome.REJECTED, Outcome.LOST, Outcome.FOREIGN))


def may_repeat(rules: RetryRules, kind: Kind, outcome: Outcome) -> bool:
    """Whether a repetition is safe. The machine checks budget, deadline and number of attempts."""
    if outcome is Outcome.NOT_BEGUN:
        return True
    return outcome in _MAY_HAVE_RUN and kind is Kind.STATELESS and rules.idempotent
