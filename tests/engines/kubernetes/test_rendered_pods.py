"""What pods get from fleet.yaml: command lines, volumes, secrets, devices, placement, grace periods."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_policy import every_template
from rendered_fleets import container_of, documents, documents_of, example, find, insecure, load, render


def _flags(container: dict[str, Any]) -> dict[str, str]:
    words = container["args"]
    return {word: words[index + 1] for index, word in enumerate(words[:-1]) if word.startswith("--")}


def _pod(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = find(found, kind, name)["spec"]["template"]["spec"]
    return spec


def test_workers_have_the_names_that_status_shows() -> None:
    found = documents("pools: {cpu: {workers: 3}}\n")
    assert find(found, "StatefulSet", "cpu")["spec"]["ordinals"] == {"start": 1}
    container = container_of(found, "StatefulSet", "cpu")
    assert container["args"][:2] == ["serve", "/srv/isochrone/models"]
    flags = _flags(container)
    assert flags["--name"] == "$(POD_NAME)"
    assert flags["--host"] == "0.0.0.0"
    assert (flags["--http-port"], flags["--grpc-port"], flags["--metrics-port"]) == ("8000", "8001", "8002")
    assert flags["--model-control-mode"] == "explicit"
    assert flags["--store"] == "etcd:http://etcd:2379"
    assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_words_that_the_kubelet_would_expand_are_escaped() -> None:
    found = documents("pools: {cpu: {region: '$(HOME)'}}\n")
    assert _flags(container_of(found, "StatefulSet", "cpu"))["--region"] == "$$(HOME)"


def test_gateways_with_processes_are_one_command() -> None:
    found = documents("gateways: {gw: {count: 2, processes: 4}}\n")
    flags = _flags(container_of(found, "StatefulSet", "gw"))
    assert flags["--processes"] == "4"
    assert flags["--listen"] == "0.0.0.0:8000"
    assert "--reuse-port" not in flags


def test_the_control_api_answers_to_the_names_of_its_service() -> None:
    words = container_of(documents("kubernetes: {namespace: here}\n"), "Deployment", "control")["args"]
    hosts = [words[index + 1] for index, word in enumerate(words) if word == "--allow-host"]
    assert hosts == ["control", "control.here", "control.here.svc", "control.here.svc.cluster.local"]


def test_the_password_is_in_a_secret_and_nowhere_else() -> None:
    text = 'name: demo\nstore: {url: "etcd:http://user:hunter2@etcd:2379"}\n'
    files = render(insecure(text), name=False)
    assert "hunter2" not in "".join(files.values())
    found = [document for path, each in files.items() if "/" not in path for document in load(each)]
    variable = container_of(found, "StatefulSet", "cpu")["env"][1]
    assert variable["name"] == "ISOCHRONE_STORE_PASSWORD"
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "demo-store", "key": "password"}}


def test_processes_that_read_models_have_the_variables_of_the_file() -> None:
    text = "kubernetes: {env: {AWS_REGION: 'eu-$(HOME)'}, env_from_secret: bucket}\n"
    variable = {"name": "AWS_REGION", "value": "eu-$$(HOME)"}
    source = [{"secretRef": {"name": "bucket"}}]
    found, engine = documents(text), documents_of(render(text, "engine"))
    places = ((found, "Deployment", "control"), (found, "StatefulSet", "cpu"), (engine, "Deployment", "engine"))
    for rendered, kind, name in places:
        container = container_of(rendered, kind, name)
        assert variable in container["env"]
        assert container["envFrom"] == source
    gateway = container_of(found, "StatefulSet", "gw")
    assert variable not in gateway["env"]
    assert "envFrom" not in gateway
    ray = find(documents_of(render(text, "kuberay")), "RayCluster", "demo")["spec"]
    given = {each["groupName"]: each["template"]["spec"]["containers"][0] for each in ray["workerGroupSpecs"]}
    given["head"] = ray["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {name for name, container in given.items() if container.get("envFrom") == source} == {"cpu", "head"}
    assert {name for name, container in given.items() if variable in container["env"]} == {"cpu", "head"}


def test_repositories_are_mounted_where_the_processes_look() -> None:
    found = example("mixed")
    pod = _pod(found, "StatefulSet", "cpu")
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts.keys() == {"/tmp", "/srv/isochrone/models", "/srv/isochrone/shared"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    models = volumes[mounts["/srv/isochrone/models"]["name"]]
    assert models["image"] == {"reference": "registry.example.com/models:2026-11", "pullPolicy": "IfNotPresent"}
    shared = volumes[mounts["/srv/isochrone/shared"]["name"]]
    assert shared["persistentVolumeClaim"] == {"claimName": "shared-models", "readOnly": True}
    # A pool with a repository of its own has no other; a gateway has none.
    own = container_of(found, "StatefulSet", "slices")
    assert own["args"][1:3] == ["/srv/isochrone/shared", "--host"]
    assert [mount["mountPath"] for mount in own["volumeMounts"]] == ["/tmp", "/srv/isochrone/shared"]
    assert len(container_of(found, "StatefulSet", "agents")["volumeMounts"]) == 1


def test_by_default_repositories_share_one_claim() -> None:
    found = documents("repository: [./a, ./b]\n")
    pod = _pod(found, "StatefulSet", "cpu")
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] != "/tmp"]
    assert [(mount["mountPath"], mount["subPath"]) for mount in mounts] == [
        ("/srv/isochrone/a", "a"),
        ("/srv/isochrone/b", "b"),
    ]
    claims = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "emptyDir" not in each]
    assert claims == ["demo-models"]


def test_volumes_whose_names_look_alike_are_different() -> None:
    volumes = "./a: {claim: team.models}, ./b: {claim: team-models}, ./c: {image: team-models}"
    pod = _pod(
        documents(f"repository: [./a, ./b, ./c]\nkubernetes: {{volumes: {{{volumes}}}}}\n"), "StatefulSet", "cpu"
    )
    held = {each["name"]: each.get("persistentVolumeClaim", each.get("image")) for each in pod["volumes"]}
    mounted = {mount["mountPath"]: held[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted["/srv/isochrone/a"]["claimName"] == "team.models"
    assert mounted["/srv/isochrone/b"]["claimName"] == "team-models"
    assert mounted["/srv/isochrone/c"]["reference"] == "team-models"


def test_the_parent_of_a_models_source_may_have_a_volume() -> None:
    text = "models: {detector: {source: ./vision/detector}}\nkubernetes: {volumes: {./vision: {claim: vision}}}\n"
    pod = _pod(documents(text), "StatefulSet", "cpu")
    held = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    mounted = {mount["mountPath"]: held[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted["/srv/isochrone/vision"] == {"claimName": "vision", "readOnly": True}
    assert mounted["/srv/isochrone/models"] == {"claimName": "demo-models", "readOnly": True}


def test_controllers_have_the_file_and_all_repositories() -> None:
    pod = _pod(example("mixed"), "Deployment", "control")
    paths = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert paths == {"/tmp", "/srv/isochrone/fleet.yaml", "/srv/isochrone/models", "/srv/isochrone/shared"}


def test_the_stores_certificates_are_mounted() -> None:
    pod = _pod(example("tiers"), "StatefulSet", "gw")
    assert {"name": "store", "mountPath": "/etc/isochrone/store", "readOnly": True} in pod["containers"][0][
        "volumeMounts"
    ]
    assert any(volume.get("secret", {}).get("secretName") == "etcd-client" for volume in pod["volumes"])


def test_the_key_is_in_every_pod_and_the_access_file_in_those_of_controllers() -> None:
    files = "/etc/isochrone/security"
    found = documents(
        f"security: {{access: {files}/access.yaml, key: {files}/fleet.key}}\nkubernetes: {{security_secret: plant}}\n"
    )
    every = {
        (each["kind"], each["metadata"]["name"]): each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    assert len(every) == 3
    for (_, name), pod in every.items():
        container = pod["containers"][0]
        is_controller = container["name"] == "controller"
        (secret,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "security")
        assert secret["secretName"] == "plant"
        assert [each["key"] for each in secret["items"]] == ["fleet.key", *(["access.yaml"] if is_controller else [])]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "security")
        assert (mount["mountPath"], mount["readOnly"], "subPath" in mount) == (files, True, False)
        flags = _flags(container)
        assert flags["--fleet-key"] == f"{files}/fleet.key", name
        assert flags["--access"] == (f"{files}/access.yaml" if is_controller else "@fleet")


@pytest.mark.parametrize(
    ("pool", "devices"),
    [("cpu", {}), ("gpu", {"nvidia.com/gpu": "1"}), ("slices", {"nvidia.com/mig-1g.18gb": "1"})],
)
def test_devices_are_requested_and_limited(pool: str, devices: dict[str, str]) -> None:
    resources = container_of(example("mixed"), "StatefulSet", pool)["resources"]
    for part in ("requests", "limits"):
        assert {name: amount for name, amount in resources[part].items() if "/" in name} == devices


def test_gpu_pools_have_their_image_labels_and_tolerations() -> None:
    pod = _pod(example("tiers"), "StatefulSet", "edge")
    assert pod["containers"][0]["image"] == "registry.example.com/isochrone-gpu:0.1.0"
    assert pod["nodeSelector"]["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "site", "operator": "Equal", "value": "plant-1", "effect": "NoExecute"},
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("gpus: 1", True),
        ("resources: {nvidia.com/mig-1g.10gb: 1}", True),
        ("device: gpu", True),
        ("resources: {example.com/fpga: 1}", False),
        ("device: cpu", False),
    ],
)
def test_pools_with_gpus_of_any_kind_have_the_gpu_image_and_do_not_scale_by_cpu(keys: str, expected: bool) -> None:
    found = documents(f"pools: {{cpu: {{max: 3, {keys}}}}}\nkubernetes: {{image: 'plain:1', gpu_image: 'gpu:1'}}\n")
    assert container_of(found, "StatefulSet", "cpu")["image"] == ("gpu:1" if expected else "plain:1")
    metrics = find(found, "HorizontalPodAutoscaler", "cpu")["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == (["Pods"] if expected else ["Pods", "Resource"])


def test_memory_of_a_worker_is_for_models_and_the_rest() -> None:
    text = "pools: {a: {memory: 3GiB}, b: {}, c: {}}\nkubernetes: {overhead: 512MiB, pools: {c: {memory: 7GiB}}}\n"
    found = documents(text)
    sizes = [container_of(found, "StatefulSet", pool)["resources"]["limits"]["memory"] for pool in "abc"]
    assert sizes == ["3584Mi", "2560Mi", "7Gi"]


@pytest.mark.parametrize(("limited", "expected"), [("true", "1500m"), ("false", None)])
def test_cpu_is_limited_only_where_it_is_asked_for(limited: str, expected: str | None) -> None:
    found = documents(f"pools: {{cpu: {{cpus: 1.5}}}}\nkubernetes: {{cpu_limits: {limited}}}\n")
    resources = container_of(found, "StatefulSet", "cpu")["resources"]
    assert resources["requests"]["cpu"] == "1500m"
    assert resources["limits"].get("cpu") == expected


@pytest.mark.parametrize(
    ("placement", "affinity", "spreads"),
    [("any", [], 0), ("spread", [], 2), ("apart", ["podAntiAffinity"], 1), ("together", ["podAffinity"], 0)],
)
def test_placement(placement: str, affinity: list[str], spreads: int) -> None:
    pod = _pod(documents(f"pools: {{cpu: {{placement: {placement}}}}}\n"), "StatefulSet", "cpu")
    assert list(pod.get("affinity", {})) == affinity
    assert len(pod.get("topologySpreadConstraints", [])) == spreads


def test_the_grace_period_covers_the_wait_and_the_drain() -> None:
    text = "pools: {cpu: {arguments: [--exit-timeout-secs=120]}}\nkubernetes: {drain_seconds: 10s}\n"
    found = documents(text)
    assert _pod(found, "StatefulSet", "cpu")["terminationGracePeriodSeconds"] == 135
    assert _pod(found, "StatefulSet", "gw")["terminationGracePeriodSeconds"] == 55
    assert container_of(found, "StatefulSet", "gw")["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}


def test_an_autoscaled_pool_states_no_number() -> None:
    found = documents("pools: {cpu: {workers: 2, min: 2, max: 6}, gpu: {gpus: 1, max: 4}, fixed: {max: 1}}\n")
    assert "replicas" not in find(found, "StatefulSet", "cpu")["spec"]
    scaler = find(found, "HorizontalPodAutoscaler", "cpu")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    assert [metric["type"] for metric in scaler["metrics"]] == ["Pods", "Resource"]
    gpu = find(found, "HorizontalPodAutoscaler", "gpu")["spec"]
    assert [metric["type"] for metric in gpu["metrics"]] == ["Pods"]
    assert find(found, "StatefulSet", "fixed")["spec"]["replicas"] == 1
    assert not any(each["kind"] == "HorizontalPodAutoscaler" and each["metadata"]["name"] == "fixed" for each in found)


@pytest.mark.parametrize("form", ["manifests", "engine", "kuberay"])
def test_pods_that_read_models_carry_the_given_labels(form: Any) -> None:
    text = "kubernetes: {pod_labels: {azure.workload.identity/use: 'true'}}\n"
    found = documents_of(render(text, form))
    carrying = {
        name
        for name, template in every_template(found)
        if template["metadata"]["labels"].get("azure.workload.identity/use") == "true"
    }
    expected = {"manifests": {"control", "cpu"}, "engine": {"engine"}, "kuberay": {"head", "cpu"}}
    assert carrying == expected[form], "gateways read no models"
    workloads = [each["spec"]["selector"] for each in found if each["kind"] in ("StatefulSet", "Deployment")]
    assert not any("azure.workload.identity/use" in selector["matchLabels"] for selector in workloads)


def test_the_quota_has_room_for_the_fleet_at_its_largest() -> None:
    text = "control: {count: 2}\npools: {cpu: {workers: 1, max: 5, cpus: 2}, gpu: {workers: 3, gpus: 2}}\n"
    hard = find(documents(f"{text}kubernetes: {{quota: true}}\n"), "ResourceQuota", "fleet")["spec"]["hard"]
    # 2 controllers, as many that end, and one more; a gateway, 5 and 3 workers, and one more of each.
    assert hard["pods"] == "17"
    assert hard["requests.cpu"] == "23"
    assert hard["requests.nvidia.com/gpu"] == "8"


def test_pods_of_others_meet_no_quota_unless_it_is_asked_for() -> None:
    assert not [each for each in documents("") if each["kind"] == "ResourceQuota"]


def test_servers_that_run_elsewhere_are_not_rendered() -> None:
    found = example("mixed")
    assert not any(each["metadata"]["name"].startswith("triton") for each in found)
