"""Fleets that cannot run in a cluster: every reason is reported, by line, with what to change."""

from __future__ import annotations

import pytest
from rendered_fleets import STORE, documents_of, insecure, render

from isochrone.control.agents.process_number import PROCESS_VARIABLE
from isochrone.control.fleet.derived.kubernetes_section import OWN_VARIABLES
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.engines.kubernetes.render.autoscaling import most_workers
from isochrone.engines.kubernetes.rendering import Format, rendered
from isochrone.settings.problems import SettingsError

#: A section of a file that names the certificates of kubernetes.tls_secret.
DIRECTORY = "/etc/isochrone/tls"
TLS = f"security: {{tls: {{cert: {DIRECTORY}/tls.crt, key: {DIRECTORY}/tls.key, ca: {DIRECTORY}/ca.crt}}}}\n"


def _message(text: str, *, store: str = STORE) -> str:
    with pytest.raises(SettingsError) as raised:
        render(f"name: demo\n{store}{insecure(text)}", name=False)
    return str(raised.value)


def test_a_store_in_a_file_is_rejected() -> None:
    assert _message("", store="") == (
        "fleet.yaml:1: store.url: expected etcd:http://HOST:2379, since the pods of a cluster cannot share a SQLite "
        "file, given 'sqlite:state/fleet.db'"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "etcd.localhost"])
def test_a_store_that_is_the_pod_itself_is_rejected(host: str) -> None:
    message = _message("", store=f'store: {{url: "etcd:http://etcd:2379,http://{host}:2379"}}\n')
    expected = "an address that pods can reach, such as etcd:http://etcd.etcd.svc:2379: this one is the pod itself"
    assert message == f"fleet.yaml:2: store.url: expected {expected}, given '{host.strip('[]')}'"


def test_a_store_with_an_unknown_option_is_rejected_by_its_line() -> None:
    message = _message("", store='store: {url: "etcd:http://etcd:2379?pa=1"}\n')
    assert message == "fleet.yaml:2: store.url: expected the options ca, cert, key after the ?, given pa"


@pytest.mark.parametrize(
    "image",
    [
        "isochrone",
        "isochrone:0.1.0",
        "registry.example.com:5000/team/isochrone_gpu:0.1.0",
        "localhost/isochrone",
        f"ghcr.io/a/b@sha256:{'0a' * 32}",
        f"ghcr.io/a/b:v1@sha256:{'0a' * 32}",
    ],
)
def test_references_of_images_are_accepted(image: str) -> None:
    assert render(f"kubernetes: {{image: '{image}'}}\n")


def test_pods_have_the_variables_that_the_file_may_not_give() -> None:
    found = documents_of(render(insecure("name: demo\nstore: {url: 'etcd:http://user@etcd:2379'}\n"), name=False))
    pods = [each["spec"]["template"]["spec"]["containers"][0] for each in found if "template" in each.get("spec", {})]
    names = {variable["name"] for container in pods for variable in container["env"]}
    assert names | {PROCESS_VARIABLE} == OWN_VARIABLES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pools: {cpu: {gpus: 0.5}}", "fleet.yaml:3: pools.cpu.gpus: expected a whole number of GPUs"),
        ("pools: {cpu: {resources: {fpga: 1}}}", "pools.cpu.resources.fpga: expected a whole number of an extended"),
        ("pools: {1st: {}}", "pools.1st: expected a name that starts with a letter and has at most 50 characters"),
        (
            "gateways: {control: {}}",
            "gateways.control: expected a name that gives other Services than that of the controllers",
        ),
        (
            "gateways: {cpu-workers: {}}\npools: {cpu: {}}",
            "pools.cpu: expected a name that gives other Services than that of gateways.cpu-workers",
        ),
        (
            "gateways: {gw: {}}\npools: {gw: {}}",
            "fleet.yaml:4: pools.gw: expected a name that gives other Services than that of gateways.gw",
        ),
        ("kubernetes: {namespace: My_Space}", "kubernetes.namespace: expected a namespace of a-z, 0-9 and -"),
        (
            "kubernetes: {pools: {cpo: {}}}",
            "kubernetes.pools.cpo: expected a known pool (did you mean 'cpu'?)",
        ),
        (
            "kubernetes: {volumes: {./other: {claim: a}}}",
            "expected a directory that repository names, or the parent of a model's source (models), given './other'",
        ),
        (
            "repository: s3://bucket/models\nkubernetes: {volumes: {'s3://bucket/models': {claim: a}}}",
            "expected a directory that repository names, or the parent of a model's source (none)",
        ),
        (
            "repository: ./a/models\npools: {cpu: {}, own: {repository: ./b/models}}",
            "kubernetes.volumes: expected a volume for each of a/models, b/models, which would all be the directory "
            "models of the claim demo-models, given one for 0 of them",
        ),
        (
            "repository: [./a, ./b]\nkubernetes: {volumes: {./a: {claim: demo-models, sub_path: b}}}",
            "kubernetes.volumes: expected a volume for each of a, b, which would all be the directory b of the claim "
            "demo-models, given one for 1 of them",
        ),
        (
            "kubernetes: {volumes: {models: {}}}",
            "kubernetes.volumes.models: expected either a claim or an image, given neither",
        ),
        (
            "kubernetes: {pod_labels: {app.kubernetes.io/name: mine}}",
            "kubernetes.pod_labels.app.kubernetes.io/name: expected a label that pods do not have already",
        ),
        ("kubernetes: {pod_labels: {a b: c}}", "kubernetes.pod_labels.a b: expected the key of a label, such as"),
        ("kubernetes: {pod_labels: {team: a b}}", "kubernetes.pod_labels.team: expected at most 63 letters"),
        ("kubernetes: {env: {a-b: c}}", "kubernetes.env.a-b: expected the name of an environment variable"),
        ("kubernetes: {env: {HOME: /a}}", "kubernetes.env.HOME: expected a variable that pods do not have already"),
        (
            "kubernetes: {env: {AWS_SECRET_ACCESS_KEY: abc}}",
            "kubernetes.env.AWS_SECRET_ACCESS_KEY: expected nothing: put it into a Secret, and name that in "
            "kubernetes.env_from_secret, given a value",
        ),
        *(
            (
                f"kubernetes: {{env: {{AWS_ENDPOINT_URL: '{text}'}}}}",
                f"AWS_ENDPOINT_URL: expected a URL such as http://minio.storage.svc:9000, given '{text}'",
            )
            for text in ("minio:9000", "http://minio:99999", "http://")
        ),
        (
            "kubernetes: {edge: {kind: istio}}",
            "kubernetes.edge.gateway: expected the Gateway that the routes belong to",
        ),
        *(
            (
                f"kubernetes: {{{key}: '{text}'}}",
                f"kubernetes.{key}: expected an image such as registry.example.com/isochrone:0.1.0, given '{text}'",
            )
            for key, text in (("image", "bad image"), ("gpu_image", "Upper"), ("ray_image", "a:b:c"), ("image", "a@b"))
        ),
        ("kubernetes: {pools: {cpu: {image: a//b}}}", "kubernetes.pools.cpu.image: expected an image such as"),
        (
            "kubernetes: {volumes: {models: {image: 'a b'}}}",
            "kubernetes.volumes.models.image: expected an image such as",
        ),
        ("kubernetes: {edge: {hosts: [a.b]}}", "kubernetes.edge.kind: expected gateway-api or istio"),
        (
            "security: {tls: {cert: a, key: b, ca: c}}",
            "security.tls.cert: expected a file in /etc/isochrone/tls, where pods have the Secret of",
        ),
        (
            "security: {tls: {cert: /etc/isochrone/tls/tls.crt, key: /etc/isochrone/tls/tls.key, ca: a/ca.crt}}\n"
            "kubernetes: {tls_secret: plant}",
            "fleet.yaml:3: security.tls.ca: expected a file in /etc/isochrone/tls, where pods have the Secret of",
        ),
        (
            f"{TLS.replace('}}', ', client_ca: /etc/isochrone/security/ca.crt}}')}kubernetes: {{tls_secret: plant}}",
            "security.tls.client_ca: expected a file in /etc/isochrone/tls, where pods have the Secret of",
        ),
        (
            "kubernetes: {tls_secret: plant}",
            "kubernetes.tls_secret: expected nothing, since security.tls names no file of it, given 'plant'",
        ),
        (
            f"{TLS}kubernetes: {{tls_secret: plant, edge: {{kind: istio, gateway: a/b}}}}",
            "gateways.gw.tls: expected false, since the proxies of kubernetes.edge end TLS and call gateways without",
        ),
        (
            "security: {signatures: {trust: [release.pub]}}",
            "security.signatures.trust[0]: expected nothing, since pods do not have the file",
        ),
        (
            "security: {encryption: {keys: ['env:KEY']}}",
            "security.encryption.keys[0]: expected nothing, since pods do not have the key",
        ),
        (
            "security: {access: access.yaml, key: fleet.key}\nkubernetes: {security_secret: plant}",
            "security.access: expected a file in /etc/isochrone/security, where pods have the Secret of",
        ),
        (
            "security: {key: /etc/isochrone/security/fleet.key}",
            "security.key: expected a file in /etc/isochrone/security, where pods have the Secret of",
        ),
        (
            "security: {access: /etc/isochrone/security/a.yaml}\nkubernetes: {security_secret: plant}",
            "security.key: expected a file, since pods other than controllers have no access file, given nothing",
        ),
        (
            "security: {access: /etc/isochrone/security/a.yaml, key: /etc/isochrone/security/k}\n"
            "kubernetes: {security_secret: plant}\ngateways: {front: {processes: 2}}",
            "gateways.front.processes: expected 1 with security.access in a cluster",
        ),
        (
            "kubernetes: {security_secret: plant}",
            "kubernetes.security_secret: expected nothing, since security.key and security.access name no file of it",
        ),
        ("kubernetes: {pools: {cpu: {tolerations: [a b]}}}", "expected KEY[=VALUE][:NoSchedule|"),
        (
            "pools: {t: {kind: triton, addresses: ['a:80']}}\nkubernetes: {pools: {t: {}}}",
            "kubernetes.pools.t: expected a pool whose workers the cluster runs",
        ),
    ],
)
def test_the_reason_names_what_to_change(text: str, expected: str) -> None:
    assert expected in _message(text + "\n")


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        (
            "",
            "security.tls (with kubernetes.tls_secret) and security.access and security.key (with "
            "kubernetes.security_secret)",
        ),
        (f"{TLS}kubernetes: {{tls_secret: t}}\n", "security.access and security.key (with kubernetes.security_secret)"),
        (
            "security: {access: /etc/isochrone/security/a.yaml, key: /etc/isochrone/security/k}\n"
            "kubernetes: {security_secret: s}\n",
            "security.tls (with kubernetes.tls_secret)",
        ),
    ],
)
@pytest.mark.parametrize("form", ["manifests", "engine", "helm", "kustomize", "kuberay"])
def test_pods_that_would_not_start_are_not_rendered(text: str, lacking: str, form: Format) -> None:
    with pytest.raises(SettingsError) as raised:
        render(f"name: demo\n{STORE}{text}", form, name=False)
    (line,) = str(raised.value).splitlines()
    assert "kubernetes.require_secure: expected false, or " in line
    assert line.endswith(
        f"false, or {lacking}, since pods start with --require-secure otherwise, given true, the default"
    )


def test_all_reasons_are_reported_at_once() -> None:
    lines = _message("pools: {cpu: {gpus: 0.5}}\nkubernetes: {edge: {kind: istio}}\n", store="").splitlines()
    assert len(lines) == 3


def test_a_password_that_cannot_be_taken_out_of_the_file_is_rejected() -> None:
    store = 'store: {url: "etcd:http://user:hunt\\x65r2@etcd:2379"}\n'
    message = _message("", store=store)
    assert "store.url: expected a URL without the password: put it into a Secret" in message
    assert "hunter2" not in message


def test_a_runtime_of_kserve_needs_no_store() -> None:
    assert list(render("name: demo\n", "kserve", name=False)) == ["serving-runtimes.yaml"]


def test_an_autoscaled_pool_of_statefulsets_has_no_standby_workers() -> None:
    text = insecure("name: plant\nstore: {url: 'etcd:http://etcd:2379'}\npools: {cpu: {workers: 2, warm: 1, max: 4}}\n")
    with pytest.raises(SettingsError, match=r"pools\.cpu\.warm: expected 0, since an autoscaler of the cluster"):
        rendered(text, "fleet.yaml")
    assert rendered(text, "fleet.yaml", "engine")
    assert rendered(text.replace(", max: 4", ""), "fleet.yaml")


def test_the_quota_has_room_for_standby_workers() -> None:
    fleet = fleet_of({"name": "plant", "pools": {"gpu": {"workers": 1, "warm": 3, "gpus": 1}}})
    assert most_workers(fleet, "gpu") == 4
