"""NetworkPolicies: the flows of a fleet are allowed, and no others. A small model of the policies decides."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from manifest_policy import every_template, pods, selects
from rendered_fleets import DEPLOY, documents, documents_of, example, render

Document = dict[str, Any]
NAMESPACE = {"kubernetes.io/metadata.name": "mixed"}


class Source:
    """One end of a flow: a pod with labels in a namespace, or an address outside."""

    def __init__(self, labels: dict[str, str], namespace: dict[str, str], address: str = "") -> None:
        self.labels, self.namespace, self.address = labels, namespace, address


def _matches(peer: Document, other: Source) -> bool:
    if "ipBlock" in peer:
        network = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return bool(other.address) and ipaddress.ip_address(other.address) in network
    if other.address:
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"].get("matchLabels", {}), other.namespace):
            return False
    elif other.namespace != NAMESPACE:
        return False
    return selects(peer.get("podSelector", {}).get("matchLabels", {}), other.labels)


def _allowed(found: list[Document], direction: str, end: Source, other: Source, port: int) -> bool:
    """Whether the policies of ``end`` let a flow pass: no policy for a direction means yes."""
    policies = [
        each["spec"]
        for each in found
        if each["kind"] == "NetworkPolicy"
        and direction.capitalize() in each["spec"]["policyTypes"]
        and selects(each["spec"]["podSelector"].get("matchLabels", {}), end.labels)
    ]
    if end.address or end.namespace != NAMESPACE or not policies:
        return True
    peers = "from" if direction == "ingress" else "to"
    return any(
        ("ports" not in rule or any(each["port"] == port for each in rule["ports"]))
        and (peers not in rule or any(_matches(peer, other) for peer in rule[peers]))
        for policy in policies
        for rule in policy[direction]
    )


def flows(found: list[Document], sender: Source, receiver: Source, port: int) -> bool:
    return _allowed(found, "egress", sender, receiver, port) and _allowed(found, "ingress", receiver, sender, port)


@pytest.fixture(scope="module")
def ends() -> dict[str, Source]:
    found = {name: Source(template["metadata"]["labels"], NAMESPACE) for name, template in pods(example("mixed"))}
    return {
        **found,
        "client": Source({}, {"kubernetes.io/metadata.name": "robots", "isochrone-clients": "true"}),
        "stranger": Source({}, {"kubernetes.io/metadata.name": "other"}),
        "prometheus": Source({}, {"kubernetes.io/metadata.name": "monitoring"}),
        "operator": Source({"isochrone-serving.github.io/control-client": "true"}, NAMESPACE),
        "dns": Source({"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"}),
        "other dns": Source({"app": "resolver"}, {"kubernetes.io/metadata.name": "dns"}),
        "node dns": Source({}, {}, "169.254.20.10"),
        "neighbour": Source({"app.kubernetes.io/name": "etcd"}, NAMESPACE),
        "etcd": Source({}, {}, "10.0.0.12"),
        "triton": Source({}, {}, "10.0.1.7"),
        "internet": Source({}, {}, "203.0.113.9"),
    }


@pytest.mark.parametrize(
    ("sender", "receiver", "port"),
    [
        ("client", "agents", 8000),
        ("agents", "cpu", 8000),
        ("agents", "gpu", 8001),
        ("batch", "slices", 8002),
        ("agents", "triton", 8001),
        ("control", "cpu", 8000),
        ("control", "agents", 8002),
        ("control", "triton", 8000),
        ("operator", "control", 8003),
        ("prometheus", "cpu", 8002),
        ("prometheus", "agents", 8002),
        *((pod, "etcd", 2379) for pod in ("control", "agents", "gpu")),
        *((pod, dns, 53) for pod in ("control", "agents", "gpu") for dns in ("dns", "other dns", "node dns")),
        # Pods of others in the namespace, such as the members of an etcd.
        ("neighbour", "neighbour", 2380),
        ("internet", "neighbour", 2379),
        ("neighbour", "dns", 53),
    ],
)
def test_the_flows_of_a_fleet_are_allowed(ends: dict[str, Source], sender: str, receiver: str, port: int) -> None:
    # The label of an operator's pod does not open its own way out: that is its owner's business.
    end = Source(ends[sender].labels, {"elsewhere": "1"}) if sender == "operator" else ends[sender]
    allowed = _allowed(example("mixed"), "egress", end, ends[receiver], port) and _allowed(
        example("mixed"), "ingress", ends[receiver], ends[sender], port
    )
    assert allowed


@pytest.mark.parametrize(
    ("sender", "receiver", "port"),
    [
        ("stranger", "agents", 8000),
        ("client", "cpu", 8000),
        ("client", "control", 8003),
        ("agents", "control", 8003),
        ("cpu", "control", 8003),
        ("cpu", "gpu", 8000),
        ("cpu", "agents", 8000),
        ("prometheus", "cpu", 8000),
        ("stranger", "cpu", 8002),
        ("gpu", "internet", 443),
        ("agents", "internet", 443),
        ("control", "internet", 443),
        ("gpu", "etcd", 22),
        ("neighbour", "cpu", 8000),
    ],
)
def test_other_flows_are_not(ends: dict[str, Source], sender: str, receiver: str, port: int) -> None:
    assert not flows(example("mixed"), ends[sender], ends[receiver], port)


@pytest.mark.parametrize(
    ("url", "peers"),
    [
        ("http://etcd:2379", [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "demo"}}}]),
        ("http://e.db.svc:2379", [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "db"}}}]),
        (
            "http://e-0.e.db.svc.cluster.local:2379",
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "db"}}}],
        ),
        ("http://10.1.2.3:2379", [{"ipBlock": {"cidr": "10.1.2.3/32"}}]),
        ("http://[fd00::1]:2379", [{"ipBlock": {"cidr": "fd00::1/128"}}]),
        ("https://etcd.example.com:2379", None),
    ],
)
def test_the_way_to_the_store(url: str, peers: list[Document] | None) -> None:
    from rendered_fleets import insecure, load, render

    files = render(insecure(f'name: demo\nstore: {{url: "etcd:{url}"}}\n'), name=False)
    policy = next(each for each in load(files["10-network.yaml"]) if each["metadata"]["name"] == "dns-and-store")
    rule = policy["spec"]["egress"][1]
    assert rule.get("to") == peers
    assert rule["ports"] == [{"protocol": "TCP", "port": 2379}]


def test_an_etcd_in_the_namespace_of_the_fleet_is_reached() -> None:
    found = documents("kubernetes: {namespace: mixed}\n")
    worker = Source(dict(pods(found))["cpu"]["metadata"]["labels"], NAMESPACE)
    etcd = Source({"app": "etcd"}, NAMESPACE)
    assert flows(found, worker, etcd, 2379)
    assert flows(found, etcd, etcd, 2380)


@pytest.mark.parametrize(
    ("repository", "variables", "ports"),
    [
        ("./models", "{AWS_ENDPOINT_URL: 'http://minio:9000'}", set()),
        ("s3://bucket/models", "{}", {443, 80}),
        ("s3://bucket/models", "{AWS_ENDPOINT_URL: 'http://minio.storage.svc:9000'}", {443, 80, 9000}),
        ("s3://bucket/models", "{AWS_ENDPOINT_URL: 'https://s3.example.com'}", {443, 80}),
        # GKE redirects port 80 to the metadata server of the node before policies are asked.
        ("gs://bucket/models", "{}", {443, 80, 988}),
        ("https://models.example.com:8443/all", "{}", {443, 80, 8443}),
        ("https://models.example.com:99999/all", "{}", {443, 80}),
    ],
)
def test_those_that_read_models_reach_object_stores(repository: str, variables: str, ports: set[int]) -> None:
    text = f"repository: '{repository}'\nkubernetes: {{env: {variables}}}\n"
    found = [*documents(text), *documents_of(render(text, "engine"))]
    policies = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "NetworkPolicy"}
    api = {443, 6443, 8443, 16443}
    for name, others in (("workers", set()), ("controllers", set()), ("engine", api), ("gateways", set())):
        anywhere = {port["port"] for rule in policies[name]["egress"] if "to" not in rule for port in rule["ports"]}
        assert anywhere == (others if name == "gateways" else ports | others), name


def test_anyone_may_call_where_no_namespace_is_named(ends: dict[str, Source]) -> None:
    policy = next(each for each in documents("") if each["metadata"]["name"] == "gateways" and "egress" in each["spec"])
    assert policy["spec"]["ingress"][0] == {"ports": [{"protocol": "TCP", "port": 8000}]}


@pytest.fixture(scope="module")
def ray() -> list[Document]:
    return documents_of(render((DEPLOY / "fleets" / "mixed.yaml").read_text(), "kuberay", name=False))


@pytest.fixture(scope="module")
def ray_ends(ends: dict[str, Source], ray: list[Document]) -> dict[str, Source]:
    """Pods as KubeRay labels them."""
    made = {
        name: Source(
            {**template["metadata"]["labels"], "ray.io/node-type": "head" if name == "head" else "worker"}, NAMESPACE
        )
        for name, template in every_template(ray)
    }
    api = Source({}, {}, "10.0.0.1")
    return {**ends, **made, "API server": api}


@pytest.mark.parametrize(
    ("sender", "receiver", "port"),
    [
        # Ray's own, and those of the fleet, wherever Ray has placed it.
        ("cpu", "head", 6379),
        ("head", "gpu", 10017),
        ("agents", "cpu", 41873),
        ("client", "agents", 8100),
        ("client", "cpu", 8101),
        ("prometheus", "batch", 9200),
        ("prometheus", "head", 8080),
        ("cpu", "etcd", 2379),
        ("gpu", "dns", 53),
        ("agents", "triton", 8001),
        ("head", "API server", 6443),
    ],
)
def test_the_flows_of_a_ray_cluster_are_allowed(
    ray: list[Document], ray_ends: dict[str, Source], sender: str, receiver: str, port: int
) -> None:
    assert flows(ray, ray_ends[sender], ray_ends[receiver], port)


@pytest.mark.parametrize(
    ("sender", "receiver", "port"),
    [
        *(
            (sender, "head", port)
            for sender in ("client", "stranger", "neighbour", "prometheus")
            for port in (6379, 8265, 10001)
        ),
        ("operator", "head", 8265),
        ("client", "cpu", 8000),
        ("client", "head", 8003),
        ("stranger", "agents", 8100),
        ("gpu", "internet", 443),
        ("cpu", "API server", 6443),
    ],
)
def test_other_flows_of_a_ray_cluster_are_not(
    ray: list[Document], ray_ends: dict[str, Source], sender: str, receiver: str, port: int
) -> None:
    assert not flows(ray, ray_ends[sender], ray_ends[receiver], port)


def test_free_ports_of_a_ray_cluster_open_nothing() -> None:
    text = "gateways: {gw: {listen: '0.0.0.0:0', metrics_port: 0}}\ncontrol: {listen: '0.0.0.0:0'}\n"
    found = documents_of(render(text, "kuberay"))
    (policy,) = [each["spec"] for each in found if each["metadata"]["name"] == "ray-callers"]
    assert all(rule["ports"] for rule in policy["ingress"]), "a rule without ports allows all of them"
