"""JSON schemas of objects that are not Kubernetes' own, reduced to the fields that are rendered.

Written from the definitions named beside each; no other fields are allowed, so that a misspelt one is found. Pod
templates and containers in them are validated by Kubernetes' own schemas.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
ANY: Schema = {"type": "object"}


def closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": items, "minItems": least, **bounds}


def _object(version: str, kind: str, spec: Schema) -> Schema:
    metadata = closed(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


# kserve/kserve 0.20: config/crd/full/serving.kserve.io_clusterservingruntimes.yaml; the protocols and the name of the
# main container: pkg/apis/serving/v1alpha1/servingruntime_types.go, pkg/constants.
_FORMAT = closed(
    ("name",),
    name=TEXT,
    version=TEXT,
    autoSelect={"type": "boolean"},
    priority={"type": "integer", "minimum": 1},
)
CLUSTER_SERVING_RUNTIME = _object(
    "serving.kserve.io/v1alpha1",
    "ClusterServingRuntime",
    closed(
        ("containers",),
        annotations=TEXTS,
        supportedModelFormats=array(_FORMAT, 1),
        protocolVersions=array({"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}, 1),
        containers=array({"type": "object", "properties": {"name": {"const": "kserve-container"}}}, 1, 1),
        volumes=array(ANY),
    ),
)

# ray-project/kuberay 1.7: ray-operator/config/crd/bases/ray.io_rayclusters.yaml.
_GROUP = closed(
    ("groupName", "template", "maxReplicas", "minReplicas"),
    groupName=TEXT,
    replicas={"type": "integer", "minimum": 0},
    minReplicas={"type": "integer", "minimum": 0},
    maxReplicas={"type": "integer", "minimum": 0},
    labels=TEXTS,
    resources=TEXTS,
    rayStartParams=TEXTS,
    template=ANY,
)
RAY_CLUSTER = _object(
    "ray.io/v1",
    "RayCluster",
    closed(
        ("headGroupSpec",),
        # Optional for KubeRay; without a release of 2.53 or newer it probes by a program that our image does not have.
        rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        enableInTreeAutoscaling={"type": "boolean"},
        autoscalerOptions=closed(
            version={"enum": ["v1", "v2"]},
            idleTimeoutSeconds={"type": "integer", "minimum": 0},
            securityContext=ANY,
        ),
        headGroupSpec=closed(("template",), rayStartParams=TEXTS, template=ANY),
        workerGroupSpecs=array(_GROUP),
    ),
)

# kubernetes-sigs/gateway-api: config/crd/standard/gateway.networking.k8s.io_httproutes.yaml.
_HOSTNAMES = array({"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9-]+)*$"}, most=16)
_PARENTS = array(closed(("name",), name=TEXT, namespace=TEXT), 1, 32)
_BACKENDS = array(closed(("name",), name=TEXT, port=PORT, weight={"type": "integer"}), 1, 16)

_MATCH = closed(
    path=closed(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value={"type": "string", "pattern": "^/"})
)
HTTP_ROUTE = _object(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    closed(
        parentRefs=_PARENTS,
        hostnames=_HOSTNAMES,
        rules=array(closed(matches=array(_MATCH, 1, 64), backendRefs=_BACKENDS), 1, 16),
    ),
)

# istio/api: networking/v1/virtual_service.proto and destination_rule.proto.
_DESTINATION = closed(("host",), host=TEXT, port=closed(("number",), number=PORT))
VIRTUAL_SERVICE = _object(
    "networking.istio.io/v1",
    "VirtualService",
    closed(
        ("hosts", "http"),
        hosts=array(TEXT, 1),
        gateways=array({"type": "string", "pattern": r"^([a-z0-9-]+/)?[a-z0-9-]+$"}),
        http=array(
            closed(
                match=array(closed(uri=closed(prefix=TEXT))),
                route=array(closed(("destination",), destination=_DESTINATION), 1),
                retries=closed(attempts={"type": "integer", "minimum": 0}),
            ),
            1,
        ),
    ),
)
DESTINATION_RULE = _object(
    "networking.istio.io/v1",
    "DestinationRule",
    closed(
        ("host",),
        host=TEXT,
        trafficPolicy=closed(
            loadBalancer=closed(simple={"enum": ["LEAST_REQUEST", "RANDOM", "PASSTHROUGH", "ROUND_ROBIN"]}),
        ),
    ),
)

# kedacore/keda 2.18: config/crd/bases/keda.sh_scaledobjects.yaml.
SCALED_OBJECT = _object(
    "keda.sh/v1alpha1",
    "ScaledObject",
    closed(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=closed(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount={"type": "integer", "minimum": 1},
        cooldownPeriod={"type": "integer", "minimum": 0},
        advanced=closed(horizontalPodAutoscalerConfig=closed(behavior=ANY)),
        # Metadata of triggers are texts, also where they are numbers.
        triggers=array(
            closed(
                ("type", "metadata"),
                type={"const": "external-push"},
                metadata=TEXTS,
                authenticationRef=closed(("name",), name=TEXT, kind=TEXT),
            ),
            1,
        ),
    ),
)
# The same: config/crd/bases/keda.sh_triggerauthentications.yaml.
TRIGGER_AUTHENTICATION = _object(
    "keda.sh/v1alpha1",
    "TriggerAuthentication",
    closed(
        secretTargetRef=array(closed(("parameter", "name", "key"), parameter=TEXT, name=TEXT, key=TEXT)),
    ),
)

SCHEMAS = {
    "ScaledObject": SCALED_OBJECT,
    "TriggerAuthentication": TRIGGER_AUTHENTICATION,
    "ClusterServingRuntime": CLUSTER_SERVING_RUNTIME,
    "RayCluster": RAY_CLUSTER,
    "HTTPRoute": HTTP_ROUTE,
    "VirtualService": VIRTUAL_SERVICE,
    "DestinationRule": DESTINATION_RULE,
}
