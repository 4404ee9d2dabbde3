"""What a reviewer would object to in a manifest: each rule is a function from documents to sentences. Pure.

Rules about rights, resources, images and traffic hold for pods of an operator (a RayCluster), too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Document = dict[str, Any]
Rule = Callable[[Sequence[Document]], Iterator[str]]

_WORKLOADS = ("StatefulSet", "Deployment")
#: Objects that belong to no namespace.
_CLUSTER_WIDE = ("Namespace", "ClusterServingRuntime")


def pods(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Every pod template, with the name of its workload."""
    for document in documents:
        if document["kind"] in _WORKLOADS:
            yield document["metadata"]["name"], document["spec"]["template"]


def every_template(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Every pod template, also those in objects of an operator."""
    yield from pods(documents)
    for document in documents:
        if document["kind"] == "RayCluster":
            spec = document["spec"]
            yield "head", spec["headGroupSpec"]["template"]
            yield from ((each["groupName"], each["template"]) for each in spec["workerGroupSpecs"])


def containers(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    yield from _containers(pods(documents))


def every_container(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    yield from _containers(every_template(documents))


def _containers(templates: Iterator[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    for name, template in templates:
        for container in template["spec"]["containers"]:
            yield f"{name}/{container['name']}", container


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def no_root(documents: Sequence[Document]) -> Iterator[str]:
    for name, template in every_template(documents):
        context = template["spec"].get("securityContext", {})
        if not context.get("runAsNonRoot") or not context.get("runAsUser"):
            yield f"{name} may run as root"


def no_rights(documents: Sequence[Document]) -> Iterator[str]:
    for name, container in every_container(documents):
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may gain rights"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name} keeps capabilities"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name} has no seccomp profile"
        if context.get("privileged"):
            yield f"{name} is privileged"


def read_only_root(documents: Sequence[Document]) -> Iterator[str]:
    for name, container in containers(documents):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{name} writes to its image"


def no_host(documents: Sequence[Document]) -> Iterator[str]:
    for name, template in every_template(documents):
        spec = template["spec"]
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} uses the host's namespaces"
        if any("hostPath" in volume for volume in spec.get("volumes", ())):
            yield f"{name} mounts the host's files"


def no_api_token(documents: Sequence[Document]) -> Iterator[str]:
    for name, template in pods(documents):
        if template["spec"].get("automountServiceAccountToken") is not False:
            yield f"{name} gets a token of the cluster's API"


def resources_set(documents: Sequence[Document]) -> Iterator[str]:
    for name, container in every_container(documents):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if not {"cpu", "memory"} <= requests.keys():
            yield f"{name} requests no CPU or memory"
        if limits.get("memory") != requests.get("memory"):
            yield f"{name} may use more memory than its node set aside"


def probes_present(documents: Sequence[Document]) -> Iterator[str]:
    for name, container in containers(documents):
        ports = {each["name"] for each in container.get("ports", ())}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container.get(probe, {}).get("httpGet")
            if asked is None:
                yield f"{name} has no {probe}"
            elif asked["port"] not in ports:
                yield f"{name}: {probe} asks a port that the container does not have"


def images_pinned(documents: Sequence[Document]) -> Iterator[str]:
    for name, container in every_container(documents):
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest"):
            yield f"{name} runs an image without a tag"


def denied_by_default(documents: Sequence[Document]) -> Iterator[str]:
    """Of the fleet's own pods; others of the namespace are not its business."""
    closed = [
        document["spec"]["podSelector"].get("matchLabels", {})
        for document in documents
        if document["kind"] == "NetworkPolicy"
        and sorted(document["spec"]["policyTypes"]) == ["Egress", "Ingress"]
        and not document["spec"].get("ingress")
        and not document["spec"].get("egress")
    ]
    for name, template in every_template(documents):
        if not any(selects(selector, template["metadata"]["labels"]) for selector in closed):
            yield f"nothing denies the traffic of {name} by default"
    if {} in closed:
        yield "the traffic of all pods of the namespace is denied"


def budgets_cover(documents: Sequence[Document]) -> Iterator[str]:
    budgets = [
        document["spec"]["selector"]["matchLabels"]
        for document in documents
        if document["kind"] == "PodDisruptionBudget"
    ]
    for name, template in pods(documents):
        matching = [each for each in budgets if selects(each, template["metadata"]["labels"])]
        if len(matching) != 1:
            yield f"{name} has {len(matching)} PodDisruptionBudgets"


def selectors_match(documents: Sequence[Document]) -> Iterator[str]:
    """A workload selects its own pods and no others; a Service and an autoscaler have what they name."""
    templates = dict(pods(documents))
    for document in documents:
        kind, name, spec = document["kind"], document["metadata"]["name"], document.get("spec", {})
        if kind in _WORKLOADS or kind == "Service":
            selector = spec["selector"]["matchLabels"] if kind in _WORKLOADS else spec["selector"]
            chosen = [each for each, pod in templates.items() if selects(selector, pod["metadata"]["labels"])]
            if len(chosen) != 1 or (kind in _WORKLOADS and chosen != [name]):
                yield f"{kind} {name} selects the pods of {chosen}"
        if kind == "Service":
            for port in spec["ports"]:
                names = {each["name"] for _, pod in pods(documents) for each in _ports_of(pod, spec["selector"])}
                if port["targetPort"] not in names:
                    yield f"Service {name} leads to no port {port['targetPort']}"
        if kind in ("HorizontalPodAutoscaler", "ScaledObject") and spec["scaleTargetRef"]["name"] not in templates:
            yield f"{name} scales nothing"


def _ports_of(template: Document, selector: dict[str, str]) -> list[Document]:
    if not selects(selector, template["metadata"]["labels"]):
        return []
    return [port for container in template["spec"]["containers"] for port in container["ports"]]


def references_exist(documents: Sequence[Document]) -> Iterator[str]:
    """Accounts, volumes and headless Services that pods name."""
    named = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        if document["kind"] == "StatefulSet" and ("Service", document["spec"]["serviceName"]) not in named:
            yield f"{document['metadata']['name']} names a Service that is not there"
    for name, template in pods(documents):
        spec = template["spec"]
        if ("ServiceAccount", spec["serviceAccountName"]) not in named:
            yield f"{name} runs as an account that is not there"
        volumes = [volume["name"] for volume in spec["volumes"]]
        if len(volumes) != len(set(volumes)):
            yield f"{name} has a volume twice"
        mounts = [mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]]
        if set(mounts) != set(volumes):
            yield f"{name} mounts {sorted(set(mounts))} of {sorted(volumes)}"
        paths = [mount["mountPath"] for container in spec["containers"] for mount in container["volumeMounts"]]
        if len(paths) != len(set(paths)):
            yield f"{name} mounts a path twice"


def config_maps_rendered(documents: Sequence[Document]) -> Iterator[str]:
    """A pod does not start before every ConfigMap that it mounts is there, with the keys that it mounts."""
    found = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    for name, template in every_template(documents):
        spec = template["spec"]
        mapped = {each["name"]: each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each}
        mounts = [mount for container in spec["containers"] for mount in container["volumeMounts"]]
        for mount in (each for each in mounts if each["name"] in mapped):
            if mount["subPath"] not in found.get(mapped[mount["name"]], {}):
                yield f"{name} mounts the ConfigMap {mapped[mount['name']]}, which is not there"


def quota_has_room(documents: Sequence[Document]) -> Iterator[str]:
    """For every pod that a workload, its update and its autoscaler may make, with those that are ending."""
    needed: Counter[str] = Counter()
    for document in documents:
        if document["kind"] in _WORKLOADS:
            count = _most_replicas(document, documents)
            (container,) = document["spec"]["template"]["spec"]["containers"]
            needed["pods"] += count * 1000
            for part in ("requests", "limits"):
                for name, amount in container["resources"].get(part, {}).items():
                    needed[f"{part}.{name}"] += count * quantity(amount)
    for document in documents:
        if document["kind"] == "ResourceQuota":
            for name, amount in document["spec"]["hard"].items():
                if needed[name] > quantity(amount):
                    yield f"the quota has {amount} {name}, and the pods need {needed[name] / 1000:g}"


def _most_replicas(workload: Document, documents: Sequence[Document]) -> int:
    spec, name = workload["spec"], workload["metadata"]["name"]
    surge = spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
    keys = {"HorizontalPodAutoscaler": "maxReplicas", "ScaledObject": "maxReplicaCount"}
    scaled = [
        each["spec"][keys[each["kind"]]]
        for each in documents
        if each["kind"] in keys and each["spec"]["scaleTargetRef"]["name"] == name
    ]
    # A Deployment does not wait until the pods that it replaces are gone; a StatefulSet needs their names.
    most = max([spec.get("replicas", 1), *scaled])
    return int(2 * most + surge if workload["kind"] == "Deployment" else most)


def quantity(text: str) -> int:
    """An amount of Kubernetes in thousandths, so that CPUs are whole numbers."""
    units = {"m": 1, "": 1000, "Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30}
    number = text.rstrip("mKMGi")
    return int(number) * units[text.removeprefix(number)]


def one_namespace(documents: Sequence[Document]) -> Iterator[str]:
    found = {each["metadata"].get("namespace") for each in documents if each["kind"] not in _CLUSTER_WIDE}
    made = {each["metadata"]["name"] for each in documents if each["kind"] == "Namespace"}
    if found != made:
        yield f"objects are in {found}, and the namespace is {made}"


def names_are_unique(documents: Sequence[Document]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for document in documents:
        key = (document["kind"], document["metadata"]["name"])
        if key in seen:
            yield f"{key} is there twice"
        seen.add(key)


def no_secrets(documents: Sequence[Document]) -> Iterator[str]:
    """No Secret is written, and no password is given as a plain value."""
    for document in documents:
        if document["kind"] == "Secret":
            yield f"{document['metadata']['name']} is a Secret in a file"
    for name, container in every_container(documents):
        for variable in container.get("env", ()):
            if "PASSWORD" in variable["name"] and "value" in variable:
                yield f"{name} shows {variable['name']}"


RULES: tuple[Rule, ...] = (
    no_root,
    no_rights,
    read_only_root,
    no_host,
    no_api_token,
    resources_set,
    probes_present,
    images_pinned,
    denied_by_default,
    budgets_cover,
    selectors_match,
    references_exist,
    config_maps_rendered,
    quota_has_room,
    one_namespace,
    names_are_unique,
    no_secrets,
)


def objections(documents: Sequence[Document]) -> list[str]:
    return [sentence for rule in RULES for sentence in rule(documents)]
