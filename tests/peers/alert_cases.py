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
MODEL = 'model="detector"'
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
_ABORTED = f'isochrone_controller_rollout_aborted{{{CONTROLLER}, rollout="r7", {MODEL}, cause="evaluation"}}'

HEALTHY: Mapping[str, str] = {
    **{f"up{{{target}}}": constant(1) for target in (WORKER, GATEWAY, CONTROLLER)},
    **{each: constant(1) for each in (_REGISTERED, _GATEWAY_REGISTERED, _LEADER, _SERVED, _CONNECTED, _HEALTHY)},
    **{each: constant(1) for each in (_CORE, _STORE)},
    **{each: constant(0) for each in (_EJECTED, _QUARANTINED, _ALARM)},
    f"isochrone_controller_epoch{{{CONTROLLER}}}": constant(7),
    f'isochrone_controller_model_share{{{CONTROLLER}, {VERSION}, part="committed"}}': constant(1),
    f'isochrone_gateway_rejections_total{{{GATEWAY}, {MODEL}, reason="deadline_exceeded"}}': growing(0),
    f'isochrone_model_info{{{WORKER}, {VERSION}, digest="d1"}}': constant(1),
    _EPOCH: constant(7),
    _ROUND_TRIP: constant(0.0001),
    _CERTIFICATE: constant(2_000_000_000),
    _GPU: constant(0.8),
    **requests(le_0_05=600, le_0_1=600, le_0_2=600),
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
    Case("ErrorBudgetBurnsFast", failures("model_failed", 150), minutes=40, also=("ErrorBudgetBurnsSlowly",)),
    # Rejections at the gateway count as well as failures at the worker.
    Case(
        "ErrorBudgetBurnsFast",
        {f'isochrone_gateway_rejections_total{{{GATEWAY}, {MODEL}, reason="unavailable"}}': growing(150)},
        minutes=40,
        also=("ErrorBudgetBurnsSlowly",),
    ),
    Case("ErrorBudgetBurnsSlowly", failures("model_failed", 25), minutes=40),
    Case("BackPressure", queue(le_0_01=0, le_0_05=100, le_0_1=600)),
    Case("QueueFull", failures("queue_full", 3)),
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
    Case("NoLeader", {}, {"fleet": "plant"}, without=(_LEADER,)),
    Case("StoreUnreachable", {_CONNECTED: constant(0)}, {"name": "gw"}),
    Case("StoreUnreachable", {_STORE: constant(0)}, {"name": "control-1"}),
    Case("GatewayStale", {_EPOCH: constant(6)}, {"name": "gw"}),
    Case("WorkerUnhealthy", {_EJECTED: constant(1)}, {"worker": "10.0.0.7:8000"}),
    Case("WorkerUnhealthy", {_HEALTHY: constant(0)}, {"worker": "10.0.0.7:8000"}),
    Case("ModelUnserved", {_SERVED: constant(0)}),
    Case("MixedDigests", {f'isochrone_model_info{{{OTHER_WORKER}, {VERSION}, digest="d2"}}': constant(1)}),
    Case(
        "CanaryRegression",
        {
            f'isochrone_controller_model_share{{{CONTROLLER}, {MODEL}, version="2", part="canary"}}': constant(0.1),
            **requests("2", le_0_05=0, le_0_1=60),
        },
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
    (
        "rejections that a worker has counted",
        {f'isochrone_gateway_rejections_total{{{GATEWAY}, {MODEL}, reason="worker"}}': growing(300)},
        40,
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
        },
        30,
    ),
    (
        "a worker that comes back within a minute",
        {_REGISTERED: f"1+0x9 0 1+0x{LENGTH}"},
        11,
    ),
)
