"""Autoscalers of pools, and the rules by which the Prometheus adapter serves their metric. Pure.

A pool with ``max`` gets a HorizontalPodAutoscaler on the requests that wait on its workers, and on CPU where it has no
GPUs; or a ScaledObject of KEDA on the figures of the controllers (``control.scaling``). Latency is no metric of either:
the tail is flat until a worker is overloaded, and then vertical.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.pods import has_tls, metadata
from isochrone.engines.kubernetes.render.scheduling import has_gpus

#: The metric that the adapter serves: requests that wait on a worker, over all its models.
PENDING = "isochrone_pending_requests"
#: The workers' metric that it is made of.
PENDING_SERIES = "nv_inference_pending_request_count"
_CPU_PERCENT = 70


def is_autoscaled(fleet: Fleet, pool: str) -> bool:
    spec = fleet.pools[pool]
    return spec.max is not None and spec.max > max(1, spec.min)


def most_workers(fleet: Fleet, pool: str) -> int:
    """The largest number of workers that the cluster may run for a pool."""
    spec = fleet.pools[pool]
    return spec.max or spec.workers if is_autoscaled(fleet, pool) else spec.processes


def has_scaler(fleet: Fleet) -> bool:
    """Whether the controllers serve KEDA."""
    return fleet.kubernetes.autoscaler == "keda" and any(is_autoscaled(fleet, pool) for pool in fleet.pools)


def autoscaler(fleet: Fleet, pool: str) -> dict[str, Any]:
    return _scaled_object(fleet, pool) if fleet.kubernetes.autoscaler == "keda" else _horizontal(fleet, pool)


def _scaled_object(fleet: Fleet, pool: str) -> dict[str, Any]:
    """Facts: keda.sh/docs, ScaledObject specification and external-push scaler.

    It has no ``fallback``. While neither a controller nor a worker answers, the HorizontalPodAutoscaler of KEDA has no
    metric and keeps the replicas. A static fallback would shrink a loaded pool to it; ``currentReplicasIfHigher`` is
    there since KEDA 2.17 only, and API servers with an older definition drop it without a word.
    """
    spec = fleet.pools[pool]
    trigger = {
        "scalerAddress": f"{names.CONTROL}.{names.namespace(fleet)}.svc:{names.SCALER_PORT}",
        "pool": pool,
        "requestsPerWorker": str(fleet.kubernetes.pool(pool).pending_per_worker),
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(fleet, pool, names.pool_selector(fleet, pool)),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": pool},
            "minReplicaCount": spec.min,
            "maxReplicaCount": spec.max,
            # Of the step to no worker at all.
            "cooldownPeriod": 300,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
            "triggers": [{"type": "external-push", "metadata": trigger, **_authentication(fleet)}],
        },
    }


def _authentication(fleet: Fleet) -> dict[str, Any]:
    return {"authenticationRef": {"name": names.CONTROL}} if has_tls(fleet) else {}


def trigger_authentication(fleet: Fleet) -> dict[str, Any]:
    """By which KEDA knows the controllers; with an authority, it speaks TLS. They ask it for no certificate."""
    authorities = {
        "parameter": "caCert",
        "name": fleet.kubernetes.tls_secret,
        "key": PurePosixPath(fleet.security.tls.ca or "").name,
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": metadata(fleet, names.CONTROL, names.control_selector(fleet)),
        "spec": {"secretTargetRef": [authorities]},
    }


def _horizontal(fleet: Fleet, pool: str) -> dict[str, Any]:
    spec = fleet.pools[pool]
    waiting = fleet.kubernetes.pool(pool).pending_per_worker
    metrics: list[dict[str, Any]] = [
        {
            "type": "Pods",
            "pods": {
                "metric": {"name": PENDING},
                "target": {"type": "AverageValue", "averageValue": str(waiting)},
            },
        }
    ]
    if not has_gpus(fleet, pool):
        cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": _CPU_PERCENT}}
        metrics.append({"type": "Resource", "resource": cpu})
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(fleet, pool, names.pool_selector(fleet, pool)),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": pool},
            # The autoscaler itself cannot start from nothing.
            "minReplicas": max(1, spec.min),
            "maxReplicas": spec.max,
            "metrics": metrics,
            "behavior": _behavior(),
        },
    }


def _behavior() -> dict[str, Any]:
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": 100, "periodSeconds": 30},
                {"type": "Pods", "value": 2, "periodSeconds": 30},
            ],
        },
        # A worker that goes takes its loaded models with it: one at a time, after five quiet minutes.
        "scaleDown": {
            "stabilizationWindowSeconds": 300,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }


def adapter_values() -> dict[str, Any]:
    """Values for the Helm chart prometheus-community/prometheus-adapter: one rule for all fleets of the cluster."""
    return {
        "rules": {
            "custom": [
                {
                    "seriesQuery": f'{PENDING_SERIES}{{namespace!="",pod!=""}}',
                    "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
                    "name": {"as": PENDING},
                    "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
                }
            ]
        }
    }
