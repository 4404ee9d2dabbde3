"""Where workers keep models that they fetch from URLs: a limited directory of the pod, or a volume of the node."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_policy import every_template, no_host, references_exist
from rendered_fleets import documents, documents_of, find, render
from schema_checks import RELEASES, check

from isochrone.settings.problems import SettingsError

URL = "repository: s3://bucket/models\n"


def worker(found: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The pod, its container and its plain variables."""
    spec = dict(every_template(found))["cpu"]["spec"]
    (container,) = spec["containers"]
    return spec, container, {each["name"]: each["value"] for each in container["env"] if "value" in each}


@pytest.mark.parametrize("form", ["manifests", "kuberay"])
def test_a_pods_own_cache_is_limited_reserved_and_never_quite_full(form: Any) -> None:
    found = documents_of(render(f"{URL}kubernetes: {{cache: {{size: 20GiB}}}}\n", form))
    for document in found:
        check(document, RELEASES[-1])
    spec, container, given = worker(found)
    assert {"name": "model-cache", "emptyDir": {"sizeLimit": "20Gi"}} in spec["volumes"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "model-cache"]
    assert given["ISOCHRONE_MODEL_CACHE"] == mount["mountPath"]
    assert not mount.get("readOnly")
    assert container["resources"]["requests"]["ephemeral-storage"] == "20Gi"
    assert int(given["ISOCHRONE_MODEL_CACHE_BYTES"]) < 20 << 30, "the kubelet evicts a pod whose directory is larger"


@pytest.mark.parametrize(
    ("key", "volume"),
    [
        ("host_path: /var/lib/models", {"hostPath": {"path": "/var/lib/models", "type": "Directory"}}),
        ("claim: cache", {"persistentVolumeClaim": {"claimName": "cache"}}),
    ],
)
def test_workers_of_a_node_may_share_a_cache(key: str, volume: dict[str, Any]) -> None:
    found = documents(f"{URL}kubernetes: {{cache: {{size: 500GiB, {key}}}}}\n")
    for document in found:
        check(document, RELEASES[-1])
    spec, container, given = worker(found)
    assert {"name": "model-cache", **volume} in spec["volumes"]
    assert given["ISOCHRONE_MODEL_CACHE_BYTES"] == str(500 << 30)
    assert "ephemeral-storage" not in container["resources"]["requests"], "it is no directory of the pod"
    assert list(references_exist(found)) == []
    enforced = find(found, "Namespace", "demo")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if "hostPath" in volume else "restricted"), "it would refuse the pods"
    assert bool(list(no_host(found))) == ("hostPath" in volume)


@pytest.mark.parametrize("text", [URL, "kubernetes: {cache: {size: 20GiB}}\n"], ids=["no key", "no URL"])
def test_without_a_url_or_a_key_there_is_no_volume_of_the_cache(text: str) -> None:
    spec, container, given = worker(documents(text))
    assert [each["name"] for each in spec["volumes"] if each["name"] == "model-cache"] == []
    assert "ISOCHRONE_MODEL_CACHE" not in given
    assert "ephemeral-storage" not in container["resources"]["requests"]


def test_a_variable_of_the_file_is_not_given_twice() -> None:
    text = f"{URL}kubernetes: {{cache: {{size: 20GiB}}, env: {{ISOCHRONE_MODEL_CACHE_BYTES: '1000'}}}}\n"
    _, container, _ = worker(documents(text))
    values = [each["value"] for each in container["env"] if each["name"] == "ISOCHRONE_MODEL_CACHE_BYTES"]
    assert values == ["1000"]


def test_only_pods_that_fetch_models_have_the_volume() -> None:
    found = documents(f"{URL}kubernetes: {{cache: {{size: 20GiB}}}}\n")
    having = {
        name
        for name, pod in every_template(found)
        if "model-cache" in [each["name"] for each in pod["spec"]["volumes"]]
    }
    assert having == {"cpu"}


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ("{host_path: /a, claim: b}", "kubernetes.cache: expected either a host_path or a claim, given both"),
        ("{host_path: models}", "kubernetes.cache.host_path: expected an absolute path without"),
        ("{host_path: /a/../b}", "kubernetes.cache.host_path: expected an absolute path without"),
    ],
)
def test_caches_that_make_no_sense_are_refused(cache: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        render(f"{URL}kubernetes: {{cache: {cache}}}\n")
