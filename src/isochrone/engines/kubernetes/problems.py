"""What a fleet must fulfil to run in a cluster: problems by path, as ``control.fleet.settings`` reports them. Pure.

Mistakes in the section ``kubernetes`` alone are found in ``control.fleet.derived.kubernetes_section``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from isochrone.control.fleet.derived.kubernetes_section import lacking_security, section_problems
from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.autoscaling import is_autoscaled
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.volumes import SECURITY_FILES, TLS_FILES, model_volumes
from isochrone.errors import ConfigError
from isochrone.settings.problems import Path, Problem, dotted
from isochrone.store.etcd.address import read_address, split_password

#: Names of Services: RFC 1035.
_SERVICE_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
#: The key of a label, and the beginnings of those that pods have already.
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_OWN_LABELS = ("app.kubernetes.io/", f"{names.PREFIX}/", "ray.io/")


def problems(fleet: Fleet) -> list[Problem]:
    """All reasons why the fleet cannot run in a cluster."""
    rules = (_of_store, _of_names, _of_pools, _of_files, _of_exposure, section_problems, _of_volumes, _of_labels)
    return [problem for rule in rules for problem in rule(fleet)]


def _of_store(fleet: Fleet) -> Iterator[Problem]:
    if not fleet.store.url.startswith("etcd:"):
        expected = "etcd:http://HOST:2379, since the pods of a cluster cannot share a SQLite file"
        yield Problem(("store", "url"), expected, repr(split_password(fleet.store.url)[0]))
        return
    try:
        read_address(split_password(fleet.store.url)[0])
    except ConfigError as error:
        yield Problem(("store", "url"), error.expected, error.given)


def loopback_stores(fleet: Fleet) -> Iterator[Problem]:
    """Stores that pods of a real cluster cannot reach, for a fleet whose URL is valid.

    Only for what is rendered: the engine itself also runs in clusters whose nodes are this machine.
    """
    endpoints = read_address(split_password(fleet.store.url)[0]).endpoints
    for host in (urlsplit(endpoint).hostname or "" for endpoint in endpoints):
        if _is_loopback(host):
            expected = (
                "an address that pods can reach, such as etcd:http://etcd.etcd.svc:2379: this one is the pod itself"
            )
            yield Problem(("store", "url"), expected, repr(host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").rpartition(".")[2] == "localhost"


def _of_names(fleet: Fleet) -> Iterator[Problem]:
    used: dict[str, str] = {names.CONTROL: "the controllers"}
    groups: list[tuple[Path, str, str]] = [
        (("gateways", group), group, names.gateway_headless_service(group)) for group in fleet.gateways
    ]
    groups += [(("pools", pool), pool, names.headless_service(pool)) for pool in names.started_pools(fleet)]
    for at, name, headless in groups:
        if not _SERVICE_NAME.fullmatch(name) or len(name) > names.LONGEST_NAME:
            expected = f"a name that starts with a letter and has at most {names.LONGEST_NAME} characters"
            yield Problem(at, f"{expected}, since a Service gets it", repr(name))
            continue
        for service in (name, headless):
            if service in used:
                yield Problem(at, f"a name that gives other Services than that of {used[service]}", repr(name))
                break
            used[service] = dotted(at)


def _of_pools(fleet: Fleet) -> Iterator[Problem]:
    for name in names.started_pools(fleet):
        pool = fleet.pools[name]
        if not pool.gpus.is_integer():
            expected = "a whole number of GPUs: Kubernetes gives no shares (resources may name a MIG slice)"
            yield Problem(("pools", name, "gpus"), expected, f"{pool.gpus:g}")
        for resource, amount in pool.resources.items():
            if not amount.is_integer() or "/" not in resource:
                expected = "a whole number of an extended resource such as nvidia.com/mig-1g.10gb"
                yield Problem(("pools", name, "resources", resource), expected, f"{amount:g} of {resource!r}")


def autoscaled_standbys(fleet: Fleet) -> Iterator[Problem]:
    """Pools of StatefulSets whose number an autoscaler sets: nobody could say how many of their workers stand by."""
    for name in names.started_pools(fleet):
        pool = fleet.pools[name]
        if pool.warm and is_autoscaled(fleet, name):
            expected = f"0, since an autoscaler of the cluster sets the number of workers (max is {pool.max})"
            yield Problem(("pools", name, "warm"), expected, str(pool.warm))


def _of_files(fleet: Fleet) -> Iterator[Problem]:
    """Files that pods do not have."""
    yield from _of_certificates(fleet)
    for key in ("access", "key"):
        file = getattr(fleet.security, key)
        if file is not None and not (fleet.kubernetes.security_secret and _is_in(file, SECURITY_FILES)):
            expected = f"a file in {SECURITY_FILES}, where pods have the Secret of kubernetes.security_secret"
            yield Problem(("security", key), expected, repr(file))
    if fleet.security.access is not None and fleet.security.key is None:
        yield Problem(("security", "key"), "a file, since pods other than controllers have no access file", "nothing")
    for group in fleet.gateways if fleet.security.guards_workers else ():
        if fleet.gateways[group].processes > 1:
            expected = "1 with security.access in a cluster: more gateways (count) do the same"
            yield Problem(("gateways", group, "processes"), expected, str(fleet.gateways[group].processes))
    is_used = fleet.security.key is not None or fleet.security.access is not None
    if fleet.kubernetes.security_secret and not (is_used or _is_in(fleet.security.tls.client_ca, SECURITY_FILES)):
        expected = "nothing, since security.key and security.access name no file of it"
        yield Problem(("kubernetes", "security_secret"), expected, repr(fleet.kubernetes.security_secret))
    for index, file in enumerate(fleet.security.signatures.trust):
        expected = "nothing, since pods do not have the file"
        yield Problem(("security", "signatures", "trust", index), expected, repr(file))
    for index, source in enumerate(fleet.security.encryption.keys):
        yield Problem(
            ("security", "encryption", "keys", index), "nothing, since pods do not have the key", repr(source)
        )


def _of_certificates(fleet: Fleet) -> Iterator[Problem]:
    tls, kubernetes = fleet.security.tls, fleet.kubernetes
    for key in ("cert", "key", "ca", "client_ca"):
        file = getattr(tls, key)
        places = [TLS_FILES] if kubernetes.tls_secret else []
        # The authority of callers is often another one than the Secret has.
        places += [SECURITY_FILES] if key == "client_ca" and kubernetes.security_secret else []
        if file is not None and not any(_is_in(file, place) for place in places):
            expected = f"a file in {TLS_FILES}, where pods have the Secret of kubernetes.tls_secret"
            yield Problem(("security", "tls", key), expected, repr(file))
    if kubernetes.tls_secret and tls.cert is None:
        yield Problem(
            ("kubernetes", "tls_secret"), "nothing, since security.tls names no file of it", repr(kubernetes.tls_secret)
        )
    if kubernetes.edge.kind != "none" and tls.cert is not None:
        for group in (group for group, spec in fleet.gateways.items() if spec.tls):
            expected = "false, since the proxies of kubernetes.edge end TLS and call gateways without it"
            yield Problem(("gateways", group, "tls"), expected, "true")


def _of_exposure(fleet: Fleet) -> Iterator[Problem]:
    """What pods lack to start with ``--require-secure``."""
    if lacking := lacking_security(fleet):
        expected = f"false, or {' and '.join(lacking)}, since pods start with --require-secure otherwise"
        yield Problem(("kubernetes", "require_secure"), expected, "true, the default")


def _is_in(file: str | None, directory: str) -> bool:
    return file is not None and str(PurePosixPath(file).parent) == directory


def _of_volumes(fleet: Fleet) -> Iterator[Problem]:
    """Repositories that would get the same volume."""
    volumes = model_volumes(fleet)
    named = {str(absolute(text, DIRECTORY)) for text in fleet.kubernetes.volumes}
    for volume in dict.fromkeys(volumes.values()):
        sharing = [path for path, each in volumes.items() if each == volume]
        if len(sharing) > 1 and not named.issuperset(sharing):
            directory = f"the directory {volume.sub_path} of the claim {volume.claim}"
            expected = f"a volume for each of {', '.join(map(_short, sharing))}, which would all be {directory}"
            yield Problem(("kubernetes", "volumes"), expected, f"one for {len(named.intersection(sharing))} of them")


def _of_labels(fleet: Fleet) -> Iterator[Problem]:
    for key, text in fleet.kubernetes.pod_labels.items():
        at: Path = ("kubernetes", "pod_labels", key)
        if not _LABEL_KEY.fullmatch(key):
            yield Problem(at, "the key of a label, such as example.com/team", repr(key))
        elif key.startswith(_OWN_LABELS):
            yield Problem(at, f"a label that pods do not have already ({', '.join(_OWN_LABELS)}…)", repr(key))
        elif text and not names.LABEL_VALUE.fullmatch(text):
            yield Problem(at, "at most 63 letters, digits, '-', '_' and '.', the first and last no sign", repr(text))


def _short(path: str) -> str:
    """A path of pods as fleet.yaml has it."""
    return path.removeprefix(f"{DIRECTORY}/")
