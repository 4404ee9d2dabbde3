"""Input series for ``promtool test rules``: a fleet that is well, and for each alert what makes it fire.

Counters grow by so much per minute. A case replaces series of the healthy fleet and adds others; every alert that it
makes fire is named, so that a case also shows which alerts stay silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_TARGET = 'fleet="plant", role="{role}", name="{name}", instance="{name}:1"'
WORKER = _TARGET.format(role="worker", name="cpu-1") + ', pool="cpu"'
OTHER_WORKER = _TARGET.format(role="worker", name="cpu-2") + ', pool="cpu"'
GATEWAY = _TARGET.format(role="gateway", name="gw")
CONTROLLER = _TARGET.format(role="controller", name="control-1")
OTHER_CONTROLLER = _TARGET.format(role="controller", name="control-2")
MODEL = 'model="detector"'
#: With an SLO of 120 ms.
OTHER_MODEL = r'model="a \"strange\" (name).*"'
VERSION = f'{MODEL}, version="1"'
#: Minutes of every series.
LENGTH = 80


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def constant(value: float) -> str:
    return f"{_number(value)}+0x{LENGTH}"


def growing(per_minute: float) -> str:
    return f"0+{_number(per_minute)}x{LENGTH}"


def histogram(name: str, labels: str, **buckets: float) -> dict[str, str]:
    """Counts per minute up to each bound, as ``le_0_05=600``; the largest is the count of all."""
    bounds = {bound.removeprefix("le_").replace("_", "."): each for bound, each in buckets.items()}
    whole = max(bounds.values())
    found = {f'{name}_bucket{{{labels}, le="{bound}"}}': growing(each) for bound, each in bounds.items()}
    return {
        **found,
        f'{name}_bucket{{{labels}, le="+Inf"}}': growing(whole),
        f"{name}_count{{{labels}}}": growing(whole),
    }


def requests(version: str = "1", **buckets: float) -> dict[str, str]:
    labels = f'{WORKER}, {MODEL}, version="{version}", stage="request"'
    return histogram("isochrone_request_duration_seconds", labels, **buckets)


def at_gateway(outcome: str, **buckets: float) -> dict[str, str]:
    """As callers see requests."""
    labels = f'{GATEWAY}, {VERSION}, outcome="{outcome}"'
    return histogram("isochrone_gateway_request_duration_seconds", labels, **buckets)


def rejections(reason: str, values: str) -> dict[str, str]:
    return {f'isochrone_gateway_rejections_total{{{GATEWAY}, {MODEL}, reason="{reason}"}}': values}


def shares(controller: str, **parts: str) -> dict[str, str]:
    """Versions by part, each with half of the traffic."""
    labels = f"{controller}, {MODEL}"
    return {
        f'isochrone_controller_model_share{{{labels}, version="{version}", part="{part}"}}': constant(0.5)
        for part, version in parts.items()
    }


def means(version: str, seconds_per_minute: float) -> dict[str, str]:
    """The sum of the times of a version's requests."""
    labels = f'{WORKER}, {MODEL}, version="{version}", stage="request"'
    return {f"isochrone_request_duration_seconds_sum{{{labels}}}": growing(seconds_per_minute)}


def queue(**buckets: float) -> dict[str, str]:
    return histogram("isochrone_request_duration_seconds", f'{WORKER}, {VERSION}, stage="queue"', **buckets)


def lag(**buckets: float) -> dict[str, str]:
    return histogram("isochrone_event_loop_lag_seconds", WORKER, **buckets)


def failures(code: str, per_minute: float) -> dict[str, str]:
    labels = f'{WORKER}, {VERSION}, code="{code}", taken="true"'
    return {f"isochrone_request_failures_total{{{labels}}}": growing(per_minute)}


_REGISTERED = f'isochrone_controller_worker_registered{{{CONTROLLER}, worker="cpu-1", pool="cpu"}}'
_GATEWAY_REGISTERED = f'isochrone_controller_gateway_registered{{{CONTROLLER}, gateway="gw"}}'
_LEADER = f"isochrone_controller_has_leader{{{CONTROLLER}}}"
_SERVED = f"isochrone_controller_model_served{{{CONTROLLER}, {MODEL}}}"
_CONNECTED = f"isochrone_gateway_store_connected{{{GATEWAY}}}"
_EPOCH = f"isochrone_gateway_epoch{{{GATEWAY}}}"
_EJECTED = f'isochrone_gateway_worker_ejected{{{GATEWAY}, worker="10.0.0.7:8000"}}'
_HEALTHY = f'isochrone_gateway_worker_healthy{{{GATEWAY}, worker="10.0.0.7:8000"}}'
_ROUND_TRIP = f'isochrone_gateway_worker_round_trip_seconds{{{GATEWAY}, worker="10.0.0.7:8000"}}'
_QUARANTINED = f"isochrone_gateway_quarantined{{{GATEWAY}, {MODEL}}}"
_CERTIFICATE = f"isochrone_certificate_expiry_timestamp_seconds{{{WORKER}}}"
_GPU = f'nv_gpu_utilization{{{WORKER}, gpu_uuid="GPU-1"}}'
_ALARM = f"isochrone_activation_cache_alarm{{{WORKER}, {VERSION}}}"
_CORE = f"isochrone_division_core_answers{{{WORKER}, {VERSION}}}"
_STORE = f"isochrone_controller_store_connected{{{CONTROLLER}}}"
_CONTROLLER_EPOCH = f"isochrone_controller_epoch{{{CONTROLLER}}}"
_ABORTED = f'isochrone_controller_rollout_aborted{{{CONTROLLER}, rollout="r7", {MODEL}, cause="evaluation"}}'


def _cut_off(key: str) -> dict[str, str]:
    """A second controller that lost the store, with the figure that it had."""
    return {
        key.replace(CONTROLLER, OTHER_CONTROLLER): constant(1),
        _STORE.replace(CONTROLLER, OTHER_CONTROLLER): constant(0),
        _CONTROLLER_EPOCH.replace(CONTROLLER, OTHER_CONTROLLER): constant(9),
    }


HEALTHY: Mapping[str, str] = {
    **{f"up{{{target}}}": constant(1) for target in (WORKER, GATEWAY, CONTROLLER)},
    **{each: constant(1) for each in (_REGISTERED, _GATEWAY_REGISTERED, _LEADER, _SERVED, _CONNECTED, _HEALTHY)},
    **{each: constant(1) for each in (_CORE, _STORE)},
    **{each: constant(0) for each in (_EJECTED, _QUARANTINED, _ALARM)},
    _CONTROLLER_EPOCH: constant(7),
    f'isochrone_controller_model_share{{{CONTROLLER}, {VERSION}, part="committed"}}': constant(1),
    **rejections("deadline_exceeded", growing(0)),
    f'isochrone_model_info{{{WORKER}, {VERSION}, digest="d1"}}': constant(1),
    # Half an hour before the first reading.
    **{f"process_start_time_seconds{{{target}}}": constant(-1800) for target in (WORKER, GATEWAY)},
    _EPOCH: constant(7),
    _ROUND_TRIP: constant(0.0001),
    _CERTIFICATE: constant(2_000_000_000),
    _GPU: constant(0.8),
    **requests(le_0_05=600, le_0_1=600, le_0_2=600),
    **means("1", 18),
    **queue(le_0_01=600, le_0_05=600, le_0_1=600),
    **lag(le_0_001=3000, le_0_01=3000, le_0_05=3000),
    **failures("model_failed", 0),
}


@dataclass(frozen=True)
class Case:
    """``series`` in place of, or beside, those of the healthy fleet."""

    alert: str
    series: Mapping[str, str]
    #: Labels that the alert has.
    labels: Mapping[str, str] = field(default_factory=lambda: {"model": "detector"})
    #: Minutes after which it fires.
    minutes: int = 14
    #: Alerts that must fire with it.
    also: Sequence[str] = ()
    without: Sequence[str] = ()

    @property
    def whole(self) -> dict[str, str]:
        return {key: each for key, each in {**HEALTHY, **self.series}.items() if key not in self.without}


CASES = (
    Case("LatencyOverSlo", requests(le_0_05=580, le_0_1=580, le_0_2=600)),
    # Time in a gateway and on the network counts.
    Case("LatencyOverSlo", at_gateway("answered", le_0_05=580, le_0_1=580, le_0_2=600)),
    Case("ErrorBudgetBurnsFast", failures("model_failed", 150), minutes=40, also=("ErrorBudgetBurnsSlowly",)),
    # What callers see counts, not what workers count: a worker that hangs counts nothing.
    *(
        Case(
            "ErrorBudgetBurnsFast",
            {**at_gateway("answered", le_0_05=600, le_0_1=600), **at_gateway(outcome, le_0_1=0, le_0_2=150)},
            minutes=40,
            also=("ErrorBudgetBurnsSlowly",),
        )
        for outcome in ("deadline_exceeded", "failed", "rejected")
    ),
    # A Triton behind a gateway has no histogram of ours.
    Case(
        "ErrorBudgetBurnsFast",
        {**at_gateway("answered", le_0_05=600, le_0_1=600), **at_gateway("rejected", le_0_05=150)},
        minutes=40,
        also=("ErrorBudgetBurnsSlowly",),
        without=tuple(requests(le_0_05=1, le_0_1=1, le_0_2=1)),
    ),
    # All failures of a burst came before the first reading of their series.
    Case(
        "ErrorBudgetBurnsFast",
        dict.fromkeys(failures("model_failed", 1), f"_x9 5000+0x{LENGTH}"),
        minutes=13,
    ),
    Case("ErrorBudgetBurnsSlowly", failures("model_failed", 25), minutes=40),
    Case("BackPressure", queue(le_0_01=0, le_0_05=100, le_0_1=600)),
    Case("QueueFull", failures("queue_full", 10)),
    Case("QueueFull", rejections("queue_full", growing(10))),
    Case("GpuUnderused", {_GPU: constant(0.05)}, {"gpu_uuid": "GPU-1"}, minutes=66),
    Case("NetworkJitter", {_ROUND_TRIP: f"0.0001+0x5 0.03+0x{LENGTH}"}, {"name": "gw", "worker": "10.0.0.7:8000"}),
    Case("EventLoopStalls", lag(le_0_001=2900, le_0_01=2900, le_0_05=3000), {"role": "worker", "name": "cpu-1"}),
    Case("CertificateExpires", {_CERTIFICATE: constant(10 * 86400)}, {"name": "cpu-1"}),
    Case("WorkerDown", {_REGISTERED: constant(0)}, {"worker": "cpu-1", "pool": "cpu"}),
    Case("WorkerDown", {f"up{{{WORKER}}}": constant(0)}, {"worker": "cpu-1", "pool": "cpu"}),
    Case("GatewayDown", {_GATEWAY_REGISTERED: constant(0)}, {"gateway": "gw"}),
    Case("GatewayDown", {f"up{{{GATEWAY}}}": constant(0)}, {"gateway": "gw"}),
    Case("ControllerDown", {f"up{{{CONTROLLER}}}": constant(0)}, {"name": "control-1"}),
    Case("NoLeader", {_LEADER: constant(0)}, {"fleet": "plant"}),
    # No page of a controller can be read.
    Case("NoLeader", {}, {"fleet": "plant"}, without=(_LEADER, _STORE, _CONTROLLER_EPOCH)),
    # A controller that is cut off keeps its last figures, which hide what has gone since.
    *(
        Case(alert, {key: constant(0), **_cut_off(key)}, labels, also=("StoreUnreachable",))
        for alert, key, labels in (
            ("NoLeader", _LEADER, {"fleet": "plant"}),
            ("WorkerDown", _REGISTERED, {"worker": "cpu-1"}),
            ("GatewayDown", _GATEWAY_REGISTERED, {"gateway": "gw"}),
            ("ModelUnserved", _SERVED, {"model": "detector"}),
        )
    ),
    Case("StoreUnreachable", {_CONNECTED: constant(0)}, {"name": "gw"}),
    # Its only controller is cut off: nobody leads.
    Case("StoreUnreachable", {_STORE: constant(0)}, {"name": "control-1"}, also=("NoLeader",)),
    Case("GatewayStale", {_EPOCH: constant(6)}, {"name": "gw"}),
    # A gateway that is cut off from the store loses its registration, and its page is still read.
    Case(
        "GatewayStale",
        {_EPOCH: constant(6), _CONNECTED: constant(0), _GATEWAY_REGISTERED: constant(0)},
        {"name": "gw"},
        also=("StoreUnreachable", "GatewayDown"),
    ),
    Case("WorkerUnhealthy", {_EJECTED: constant(1)}, {"worker": "10.0.0.7:8000"}),
    Case("WorkerUnhealthy", {_HEALTHY: constant(0)}, {"worker": "10.0.0.7:8000"}),
    # Ejections end by themselves, and come back.
    Case("WorkerUnhealthy", {_EJECTED: "1 1 0 " * (LENGTH // 3)}, {"worker": "10.0.0.7:8000"}),
    Case("ModelUnserved", {_SERVED: constant(0)}),
    Case("MixedDigests", {f'isochrone_model_info{{{OTHER_WORKER}, {VERSION}, digest="d2"}}': constant(1)}),
    # Within one bucket, by the means: 30 ms and 40 ms.
    Case(
        "CanaryRegression",
        {**shares(CONTROLLER, canary="2"), **requests("2", le_0_05=60, le_0_1=60), **means("2", 2.4)},
        {"model": "detector", "version": "2"},
    ),
    # By the p95 alone: a tenth of the requests is far slower.
    Case(
        "CanaryRegression",
        {**shares(CONTROLLER, canary="2"), **requests("2", le_0_05=54, le_0_1=54, le_1_0=60), **means("2", 1.8)},
        {"model": "detector", "version": "2"},
    ),
    Case(
        "RolloutStuck",
        {
            f'isochrone_controller_rollout{{{CONTROLLER}, rollout="r7", {MODEL}, state="preparing", step="0"}}': (
                constant(1)
            )
        },
        {"rollout": "r7", "state": "preparing"},
        minutes=20,
    ),
    Case("RolloutAborted", {_ABORTED: constant(1)}, {"rollout": "r7", "cause": "evaluation"}),
    Case("ActivationCacheAlarm", {_ALARM: constant(1)}),
    Case("CoreAway", {_CORE: constant(0)}),
    Case("RequestsQuarantined", {_QUARANTINED: constant(2)}),
)

#: Series that are not those of a healthy fleet, and still are no reason for an alert, with the minutes of the look.
SILENT: tuple[tuple[str, Mapping[str, str], int], ...] = (
    ("a healthy fleet", {}, 14),
    ("a healthy fleet, for longer", {}, 66),
    ("an aborted rollout of more than an hour ago", {_ABORTED: constant(1)}, 66),
    # A hundred requests in five minutes are needed for a p99: these are fifty.
    ("few slow requests", requests(le_0_05=9.7, le_0_1=9.7, le_0_2=10), 14),
    ("callers' mistakes and quotas", failures("invalid_argument", 300), 40),
    ("rejections that a worker has counted", rejections("worker", growing(300)), 40),
    (
        "quotas",
        {
            **at_gateway("answered", le_0_05=600, le_0_1=600),
            **at_gateway("rejected", le_0_05=300),
            **rejections("quota", growing(300)),
        },
        40,
    ),
    (
        "attempts that failed, and whose requests another worker answered",
        {**at_gateway("answered", le_0_05=600, le_0_1=600), **failures("model_failed", 300)},
        40,
    ),
    (
        "callers who have gone",
        {**at_gateway("answered", le_0_05=600, le_0_1=600), **at_gateway("cancelled", le_0_2=300)},
        40,
    ),
    (
        "one rejection before a server that has no histogram of ours",
        {
            **dict.fromkeys(requests(le_0_05=1, le_0_1=1, le_0_2=1), "_ stale"),
            **at_gateway("answered", le_0_05=600, le_0_1=600),
            **dict.fromkeys(at_gateway("rejected", le_0_05=1), f"0+0x20 1+0x{LENGTH}"),
            **rejections("unavailable", f"0+0x20 1+0x{LENGTH}"),
        },
        24,
    ),
    # Interpolated between the bounds 0.1 and 0.15, the p99 would be 0.135: more than the SLO of 0.12.
    (
        "answers within the bucket of the SLO",
        {key.replace(MODEL, OTHER_MODEL): each for key, each in requests(le_0_1=580, le_0_15=600).items()},
        14,
    ),
    ("one request that found a full queue", dict.fromkeys(failures("queue_full", 1), f"0+0x6 1+0x{LENGTH}"), 10),
    ("few requests that find a full queue", failures("queue_full", 3), 14),
    (
        "a burst that found full queues, three minutes ago",
        dict.fromkeys(failures("queue_full", 1), f"0+0x6 60+0x{LENGTH}"),
        10,
    ),
    (
        "a worker that was retired, whose page Prometheus still reads",
        {f"up{{{OTHER_WORKER}}}": constant(0)},
        14,
    ),
    (
        "a worker that was retired while it was unhealthy",
        {_HEALTHY: "0+0x3 stale", _EJECTED: "1+0x3 stale", _ROUND_TRIP: "0.1 0.0001 0.0001 stale"},
        8,
    ),
    ("one ejection", {_EJECTED: f"0+0x6 1 0+0x{LENGTH}"}, 9),
    ("an aborted rollout of long ago, with a gap of readings", {_ABORTED: f"1+0x5 _x22 1+0x{LENGTH}"}, 76),
    (
        "two controllers, one of them behind, and a canary that was committed",
        {
            **shares(CONTROLLER, committed="2"),
            **shares(OTHER_CONTROLLER, committed="1", canary="2"),
            f'isochrone_controller_model_share{{{CONTROLLER}, {VERSION}, part="committed"}}': "_ stale",
            _STORE.replace(CONTROLLER, OTHER_CONTROLLER): constant(1),
            _CONTROLLER_EPOCH.replace(CONTROLLER, OTHER_CONTROLLER): constant(6),
            **requests("2", le_0_05=60, le_0_1=60),
            **means("2", 2.9),
        },
        30,
    ),
    (
        "a canary just over a bound of the histogram",
        {
            **shares(CONTROLLER, canary="2"),
            **requests("1", le_0_05=600, le_0_075=600),
            **means("1", 29),
            **requests("2", le_0_05=0, le_0_075=60, le_0_1=60),
            **means("2", 3.1),
        },
        30,
    ),
    (
        "another fleet in trouble",
        {
            key.replace('fleet="plant"', 'fleet="other"'): each
            for case in CASES
            for key, each in case.series.items()
            if key not in HEALTHY or each != HEALTHY[key]
        },
        40,
    ),
    (
        "a canary that is as fast",
        {
            f'isochrone_controller_model_share{{{CONTROLLER}, {MODEL}, version="2", part="canary"}}': constant(0.1),
            **requests("2", le_0_05=60, le_0_1=60),
            **means("2", 1.85),
        },
        30,
    ),
    (
        "a worker that comes back within a minute",
        {_REGISTERED: f"1+0x9 0 1+0x{LENGTH}"},
        11,
    ),
)
