"""Serving runtimes for KServe: its InferenceServices then run our worker. Pure.

KServe makes the pods; fleets, gateways and rollouts of ours are not part of it. Facts: kserve/kserve 0.20,
config/runtimes/kserve-tritonserver.yaml and pkg/apis/serving/v1alpha1/servingruntime_types.go. The container must have
the name kserve-container, and the first port becomes port 80 of the Service; a port named h2c carries gRPC.
"""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.pods import USER, WRITABLE_HOME, container_security, image
from isochrone.engines.kubernetes.render.probes import of_worker
from isochrone.engines.kubernetes.render.scheduling import cpu_text, memory_text

#: KServe's conventions: where its storage initializer puts the model, and its ports.
MODELS = "/mnt/models"
_HTTP_PORT, _GRPC_PORT = 8080, 9000
#: Above the stock Triton runtime's 1.
_PRIORITY = 3
_FORMATS = (("onnx", "1"), ("pytorch", "2"), ("triton", "2"))
_MEMORY = 2 << 30


def serving_runtimes(fleet: Fleet) -> list[dict[str, Any]]:
    """One for REST, which KServe chooses by itself, and one for gRPC, which an InferenceService names."""
    http = [{"name": "http1", "containerPort": _HTTP_PORT, "protocol": "TCP"}]
    grpc = [{"name": "h2c", "containerPort": _GRPC_PORT, "protocol": "TCP"}]
    return [_runtime(fleet, "isochrone", http, auto=True), _runtime(fleet, "isochrone-grpc", grpc, auto=False)]


def _runtime(fleet: Fleet, name: str, ports: list[dict[str, Any]], auto: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"autoSelect": True, "priority": _PRIORITY} if auto else {"autoSelect": False}
    size = {"cpu": cpu_text(1), "memory": memory_text(_MEMORY)}
    container = {
        "name": "kserve-container",
        "image": image(fleet),
        "args": [
            "tritonserver",
            f"--model-store={MODELS}",
            f"--http-port={_HTTP_PORT}",
            f"--grpc-port={_GRPC_PORT}",
            f"--metrics-port={names.METRICS_PORT}",
            "--log-json",
        ],
        "env": WRITABLE_HOME,
        "ports": ports,
        **_on_port(of_worker(in_fleet=False)),
        "resources": {"requests": size, "limits": {"memory": size["memory"]}},
        "securityContext": {**container_security(), "runAsUser": USER},
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ClusterServingRuntime",
        # Makes KServe assume protocol v2, and start the worker without models where there is no storageUri.
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": "isochrone", "app.kubernetes.io/managed-by": names.MANAGER},
            "annotations": {"serving.kserve.io/server-type": "tritonserver"},
        },
        "spec": {
            "annotations": {
                "prometheus.kserve.io/port": str(names.METRICS_PORT),
                "prometheus.kserve.io/path": "/metrics",
            },
            "supportedModelFormats": [{"name": kind, "version": version, **choice} for kind, version in _FORMATS],
            "protocolVersions": ["v2", "grpc-v2"],
            "containers": [container],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }


def _on_port(probes: dict[str, Any]) -> dict[str, Any]:
    """The probes by number: only one of the two ports has a name in the pod."""
    return {kind: {**probe, "httpGet": {**probe["httpGet"], "port": _HTTP_PORT}} for kind, probe in probes.items()}
