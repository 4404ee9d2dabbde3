"""The share of requests that missed their SLO, over the windows of the burn rates. Pure.

Where gateways have a model's requests, they are judged as callers saw them: bad is one that was answered late, failed,
passed its deadline, or was rejected, each request once however many attempts it took. Quotas, quarantined requests and
callers' mistakes are not bad. Requests that come without a gateway are judged by what workers count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isochrone.monitoring.counting import known_since, per_second
from isochrone.monitoring.rules import RecordingRule

BAD_RATIO: Final = "isochrone:bad_requests:ratio_rate"
#: Requests per second that the budget counts; only those that come with a gateway, and all that workers get.
AT_GATEWAYS_RATE: Final = "isochrone:counted_at_gateways:rate"
AT_WORKERS_RATE: Final = "isochrone:counted_at_workers:rate"
#: Windows of the burn rates, the longer ones evaluated less often.
SHORT_WINDOWS: Final = ("5m", "30m", "1h", "2h")
LONG_WINDOWS: Final = ("6h", "1d", "3d")

AT_GATEWAYS: Final = "isochrone_gateway_request_duration_seconds"
AT_WORKERS: Final = "isochrone_request_duration_seconds"
ANSWERED: Final = 'outcome="answered"'
WHOLE: Final = 'stage="request"'
#: Outcomes at gateways that are no answers. A caller who has gone is not among them.
_LOST: Final = 'outcome=~"rejected|deadline_exceeded|failed"'
#: Error codes of workers that are a server's fault.
FAULTS: Final = (
    "deadline_exceeded",
    "queue_full",
    "unavailable",
    "connection_lost",
    "model_failed",
    "fetch_failed",
    "internal",
)
#: Reasons of gateways' rejections that are the caller's: they are among the outcomes ``rejected``.
EXCUSED: Final = (
    "quota",
    "quarantined",
    "unauthenticated",
    "permission_denied",
    "restricted",
    "too_large",
    "unsupported",
    "unsupported_encoding",
    "method_not_allowed",
    "already_exists",
    "cancelled",
)


def bad_ratios(windows: Iterable[str], classes: Iterable[tuple[str, str]]) -> list[RecordingRule]:
    """``classes``: matchers of models, and the bound of the bucket that holds answers in time."""
    known = list(classes)
    return [rule for window in windows for rule in _of_window(window, known)]


def _of_window(window: str, classes: list[tuple[str, str]]) -> Iterator[RecordingRule]:
    yield known_since(window)
    for series, whole in ((AT_GATEWAYS_RATE, _whole_at_gateways), (AT_WORKERS_RATE, _whole_at_workers)):
        yield RecordingRule(series + window, f"sum by (fleet, model) ({whole(window)}) > 0")
    at_gateways = _share(AT_GATEWAYS_RATE + window, _in_time(AT_GATEWAYS, ANSWERED, window, classes))
    at_workers = _share(AT_WORKERS_RATE + window, _in_time(AT_WORKERS, WHOLE, window, classes))
    yield RecordingRule(BAD_RATIO + window, f"{at_gateways} or {at_workers}")


def _whole_at_gateways(window: str) -> str:
    """Requests that count. The parts have different labels, so that ``or`` keeps all of them, and one that is absent
    takes nothing away."""
    answered = per_second(f"{AT_GATEWAYS}_count{{FLEET, {ANSWERED}}}", window)
    lost = per_second(f"{AT_GATEWAYS}_count{{FLEET, {_LOST}}}", window)
    reasons = f'reason=~"{"|".join(EXCUSED)}"'
    excused = per_second(f"isochrone_gateway_rejections_total{{FLEET, {reasons}}}", window)
    return f"{answered} or {lost} or -1 * {excused}"


def _whole_at_workers(window: str) -> str:
    answered = per_second(f"{AT_WORKERS}_count{{FLEET, {WHOLE}}}", window)
    codes = f'code=~"{"|".join(FAULTS)}"'
    return f"{answered} or {per_second(f'isochrone_request_failures_total{{FLEET, {codes}}}', window)}"


def _in_time(histogram: str, matcher: str, window: str, classes: list[tuple[str, str]]) -> str:
    buckets = (f'{histogram}_bucket{{FLEET{models}, {matcher}, le="{bound}"}}' for models, bound in classes)
    return f"sum by (fleet, model) ({' or '.join(per_second(each, window) for each in buckets)})"


def _share(whole: str, in_time: str) -> str:
    """What is not in time. Without requests there is no share: the other side of an ``or`` then counts."""
    return f"clamp_min(1 - ({in_time} or 0 * {whole}{{FLEET}}) / {whole}{{FLEET}}, 0)"
