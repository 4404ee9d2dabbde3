"""The section ``kubernetes`` of fleet.yaml: what only a cluster needs to know, as types.

Every key has a default, so that a fleet whose store is etcd can be rendered without this section. The rules between
these keys and the rest of the file are in ``derived.kubernetes_section``; what else a fleet needs in a cluster is in
``engines.kubernetes.problems``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from isochrone.control.fleet.settings.quantities import Bytes, Name, Seconds, Words
from isochrone.settings.sections import Section
from isochrone.settings.validator_errors import wrong

_TAINT = re.compile(r"(?P<key>[\w./-]+)(?:=(?P<value>[\w.-]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?")
#: As the extra ray of the package requires.
_FIRST_RAY = (2, 56, 0)
_GIB = 1 << 30
_MIB = 1 << 20


def _toleration(given: str) -> str:
    if given != "*" and not _TAINT.fullmatch(given):
        raise wrong("KEY[=VALUE][:NoSchedule|:PreferNoSchedule|:NoExecute] as kubectl taint writes it, or * for all")
    return given


def _ray_version(given: str) -> str:
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", given)
    if match is None or tuple(map(int, match.groups())) < _FIRST_RAY:
        raise wrong("a release of Ray such as 2.56.0, which is the first that the engine ray supports")
    return given


def _empty(given: Any) -> Any:
    return {} if given is None else given


RayVersion = Annotated[str, AfterValidator(_ray_version)]
#: A taint that pods tolerate, as ``kubectl taint`` writes it.
Toleration = Annotated[str, AfterValidator(_toleration)]
Tolerations = Annotated[tuple[Toleration, ...], Field(strict=False)]
Texts = Annotated[dict[str, str], BeforeValidator(_empty)]


class ModelVolume(Section):
    """The volume that holds one model repository. Pods mount it read-only at the path of the repository."""

    claim: str = ""
    """PersistentVolumeClaim with the repository. It must allow ReadOnlyMany or ReadWriteMany if pods run on several
    nodes."""
    image: str = ""
    """OCI image or artifact with the repository, instead of a claim: an image volume of Kubernetes."""
    sub_path: str = ""
    """Directory of the volume that is the repository. The default is the whole volume."""


class ModelCache(Section):
    """Where workers keep models that they fetch from URLs. The default is a directory of each pod, without a limit."""

    size: Bytes = 0
    """Largest size. A pod's own directory reserves it on the disk of the node (a request of ephemeral storage), and
    workers keep a tenth of it free. Without it workers use up to 64GiB or 80 % of the disk."""
    host_path: str = ""
    """Directory of every node, shared by the workers there, so that a version is fetched once per node. It must be
    there and belong to user 10001. The namespace then enforces no security standard, since both forbid such volumes."""
    claim: str = ""
    """PersistentVolumeClaim with a local file system, shared by the workers of one node, instead of host_path. Not for
    file systems of a network: workers lock files in it."""


class KubernetesPool(Section):
    """What pods of one pool need besides the keys of the pool itself."""

    image: str = ""
    """Image of these workers. The default is gpu_image for pools with GPUs, else image."""
    tolerations: Tolerations = ()
    """Taints that these pods tolerate, such as nvidia.com/gpu:NoSchedule."""
    memory: Bytes = 0
    """Memory of one pod. The default is the memory of the pool (2GiB where it has none) and the key overhead."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the resource that gpus counts."""
    runtime_class: str = ""
    """RuntimeClass of the pods, such as nvidia."""
    priority_class: str = ""
    """PriorityClass of the pods."""
    ready_seconds: int = Field(default=5, ge=0, le=3600)
    """Seconds that a new pod must be ready, with the committed versions loaded, before an update replaces the next one:
    time for the gateways to send it requests."""
    pending_per_worker: int = Field(default=4, ge=1)
    """Requests that may wait on a worker, on average, before the autoscaler adds one. Used where max is set."""


class Edge(Section):
    """How requests from outside the cluster reach the gateways."""

    kind: Literal["none", "gateway-api", "istio"] = "none"
    """gateway-api: an HTTPRoute; istio: a VirtualService and a DestinationRule. Both for HTTP and gRPC."""
    hosts: Words = ()
    """Host names of the requests. The default is any."""
    gateway: str = ""
    """The Gateway that the routes belong to, as NAME or NAMESPACE/NAME. Required unless kind is none."""


class Kubernetes(Section):
    """How isochrone render kubernetes writes the fleet. Other engines do not use it."""

    namespace: Annotated[str, Field(max_length=63)] = ""
    """Namespace of all objects. It should hold one fleet. The default is the name of the fleet."""
    image: str = ""
    """Image of controllers, gateways and workers. The default is isochrone:RELEASE, from deploy/Containerfile."""
    gpu_image: str = ""
    """Image of workers of pools with GPUs: with gpus, a resource of nvidia.com, or device gpu. The default is
    isochrone-gpu:RELEASE, from deploy/Containerfile.gpu."""
    ray_image: str = ""
    """Image of Ray's nodes, with isochrone[kuberay], for --format kuberay. The default is isochrone-ray:RELEASE."""
    ray_version: RayVersion = "2.56.0"
    """Release of Ray in ray_image. KubeRay chooses its probes by it; the first release that the engine ray supports is
    enough."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When nodes pull the images."""
    pull_secrets: Words = ()
    """Secrets with the credentials of the registry."""
    store_secret: str = ""
    """Secret whose key password is the password of the etcd user. The default, where store.url names a user, is
    NAME-store."""
    store_tls_secret: str = ""
    """Secret with ca.crt, tls.crt and tls.key, mounted at /etc/isochrone/store: name the files in store.url, as in
    etcd:https://etcd:2379?ca=/etc/isochrone/store/ca.crt."""
    security_secret: str = ""
    """Secret with the fleet's key and the access file, mounted at /etc/isochrone/security: name the files in
    security.key and security.access, as in /etc/isochrone/security/fleet.key. Only controllers get the access file."""
    tls_secret: str = ""
    """Secret with tls.crt, tls.key and ca.crt, as cert-manager writes it, mounted at /etc/isochrone/tls: name the files
    in security.tls, as in /etc/isochrone/tls/tls.crt. A renewed Secret needs no restart."""
    require_secure: bool = True
    """Pods refuse to start without TLS and access rules (--require-secure), and a fleet without security.tls and
    security.access is not rendered. false: for a cluster whose network is trusted or encrypted otherwise."""
    volumes: Annotated[dict[str, ModelVolume], BeforeValidator(_empty)] = Field(default={})
    """Volumes of the model repositories, by the path that repository names or the parent of a model's source. The
    default is the claim NAME-models, and its sub-directories where there are several repositories."""
    cache: ModelCache = ModelCache()
    """Where workers keep models that they fetch from URLs."""
    service_account_annotations: Texts = Field(default={})
    """Annotations of the workers' and controllers' ServiceAccounts, which read model repositories: the identity for an
    object store, such as eks.amazonaws.com/role-arn."""
    pod_labels: Texts = Field(default={})
    """Labels of the pods of workers, controllers and the engine, such as azure.workload.identity/use: "true"."""
    env: Texts = Field(default={})
    """Environment variables of workers, controllers and the engine, such as AWS_REGION and AWS_ENDPOINT_URL of an
    object store. Secret ones belong into env_from_secret."""
    env_from_secret: str = ""
    """Secret whose keys are environment variables of workers, controllers and the engine, such as AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY."""
    overhead: Bytes = _GIB
    """Memory of a worker's pod besides the models."""
    gateway_memory: Bytes = 512 * _MIB
    """Memory of one gateway's pod."""
    control_memory: Bytes = 512 * _MIB
    """Memory of one controller's pod."""
    cpu_limits: bool = False
    """Limit pods to their cpus. A limit throttles a busy process for tens of milliseconds; whole cores that the kubelet
    pins (static CPU manager policy) need it."""
    drain_seconds: Seconds = Field(default=5.0, ge=0, le=300)
    """Time between the removal of a gateway from its Service and its stop, so that load balancers learn of it."""
    service_type: Literal["ClusterIP", "LoadBalancer", "NodePort"] = "ClusterIP"
    """Type of the gateways' Services."""
    service_annotations: Texts = Field(default={})
    """Annotations of the gateways' Services, such as those of a cloud's load balancer."""
    client_namespaces: Texts = Field(default={})
    """Labels of the namespaces whose pods may send requests to the gateways. The default is any source."""
    monitoring_namespace: str = "monitoring"
    """Namespace whose pods may read the metrics."""
    autoscaler: Literal["hpa", "keda"] = "hpa"
    """What scales pools with max. hpa: Kubernetes' own, on metrics that the Prometheus adapter serves; keda: KEDA, on
    the figures of the controllers, which wakes a pool with min 0 when a request comes."""
    keda_namespace: str = "keda"
    """Namespace of KEDA's operator, which may call the controllers."""
    quota: bool = False
    """Write a ResourceQuota that fits this fleet at its largest, for a namespace that holds nothing else: it counts the
    pods of others, too, and refuses those without requests of CPU and memory and a limit of memory."""
    edge: Edge = Edge()
    """How requests from outside the cluster reach the gateways."""
    pools: Annotated[dict[Name, KubernetesPool], BeforeValidator(_empty)] = Field(default={})
    """Settings of single pools."""

    def pool(self, name: str) -> KubernetesPool:
        return self.pools.get(name, KubernetesPool())


def toleration(text: str) -> dict[str, str]:
    """A taint as the toleration of a pod."""
    if text == "*":
        return {"operator": "Exists"}
    match = _TAINT.fullmatch(text)
    assert match is not None  # validated with the section
    key, value, effect = match["key"], match["value"], match["effect"]
    found = {"key": key, "operator": "Exists"} if value is None else {"key": key, "operator": "Equal", "value": value}
    return {**found, "effect": effect} if effect else found
