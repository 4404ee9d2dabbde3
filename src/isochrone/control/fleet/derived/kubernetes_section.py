"""Checks of the section ``kubernetes`` of fleet.yaml against itself and the rest of the file. Pure.

They run for every file that is read, by whatever engine its fleet runs: a mistake in the section is reported by
``isochrone validate``, and not first by ``isochrone render``. Whether the fleet as a whole can run in a cluster is
decided in ``engines.kubernetes.problems``. A fleet in the store is not checked again: its section does not matter to
processes that run elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from isochrone.control.fleet.derived.engine_processes import POD_DIRECTORY
from isochrone.control.fleet.derived.locations import absolute, repositories_of
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.models.sources.endpoints import is_endpoint
from isochrone.models.sources.locations import is_url
from isochrone.settings.problems import Path, Problem
from isochrone.store.etcd.address import PASSWORD_VARIABLE
from isochrone.suggestions import suggestion

#: Variables that pods have already.
OWN_VARIABLES = frozenset(("HOME", "ISOCHRONE_PROCESS", "POD_NAME", "PYTHONDONTWRITEBYTECODE", PASSWORD_VARIABLE))
#: Where a server that speaks S3 is, for obstore.
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Names of credentials; a file of one is none.
_SECRET = re.compile(r"(SECRET|PASSWORD|TOKEN|ACCOUNT_KEY)(?!.*_FILE$)")
#: [HOST[:PORT]/]PATH[:TAG][@DIGEST], by the grammar of the OCI distribution's references.
_IMAGE = re.compile(
    r"((?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
    r"(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)


def section_problems(fleet: FleetSections) -> list[Problem]:
    """All mistakes in the section."""
    rules = (_of_namespace, _of_images, _of_pools, _of_volumes, _of_cache, _of_variables, _of_edge)
    return [problem for rule in rules for problem in rule(fleet)]


def lacking_security(fleet: FleetSections) -> list[str]:
    """Settings without which pods refuse to start."""
    if not fleet.kubernetes.require_secure:
        return []
    lacking = [] if fleet.security.tls.cert is not None else ["security.tls (with kubernetes.tls_secret)"]
    if fleet.security.access is None:
        lacking.append("security.access and security.key (with kubernetes.security_secret)")
    return lacking


def _of_namespace(fleet: FleetSections) -> Iterator[Problem]:
    # Without one, the name of the fleet is the namespace; only a cluster limits that.
    namespace = fleet.kubernetes.namespace
    if namespace and not _NAMESPACE.fullmatch(namespace):
        expected = "a namespace of a-z, 0-9 and -, at most 63 characters"
        yield Problem(("kubernetes", "namespace"), expected, repr(namespace))


def _of_images(fleet: FleetSections) -> Iterator[Problem]:
    section = fleet.kubernetes
    given: dict[Path, str] = {("kubernetes", key): getattr(section, key) for key in ("image", "gpu_image", "ray_image")}
    given |= {("kubernetes", "pools", name, "image"): pool.image for name, pool in section.pools.items()}
    given |= {("kubernetes", "volumes", name, "image"): volume.image for name, volume in section.volumes.items()}
    for at, text in given.items():
        if text and not _IMAGE.fullmatch(text):
            yield Problem(at, "an image such as registry.example.com/isochrone:0.1.0", repr(text))


def _of_pools(fleet: FleetSections) -> Iterator[Problem]:
    for name in fleet.kubernetes.pools:
        if name not in fleet.pools:
            yield Problem(("kubernetes", "pools", name), suggestion(name, list(fleet.pools), "pool"), repr(name))
        elif fleet.pools[name].addresses:
            expected = "a pool whose workers the cluster runs, and not one with addresses"
            yield Problem(("kubernetes", "pools", name), expected, repr(name))


def _of_volumes(fleet: FleetSections) -> Iterator[Problem]:
    """Volumes that no repository uses, or that are no volume."""
    started = [pool for pool, spec in fleet.pools.items() if not spec.addresses]
    every = {str(place) for pool in started for place in repositories_of(fleet, pool, POD_DIRECTORY)}
    known = {path for path in every if not is_url(path)}
    for repository, volume in fleet.kubernetes.volumes.items():
        at: Path = ("kubernetes", "volumes", repository)
        if str(absolute(repository, POD_DIRECTORY)) not in known:
            named = ", ".join(sorted(path.removeprefix(f"{POD_DIRECTORY}/") for path in known)) or "none"
            expected = f"a directory that repository names, or the parent of a model's source ({named})"
            yield Problem(at, expected, repr(repository))
        elif bool(volume.claim) == bool(volume.image):
            yield Problem(at, "either a claim or an image", "both" if volume.claim else "neither")


def _of_cache(fleet: FleetSections) -> Iterator[Problem]:
    cache = fleet.kubernetes.cache
    at: Path = ("kubernetes", "cache")
    if cache.host_path and cache.claim:
        yield Problem(at, "either a host_path or a claim", "both")
    if cache.host_path and (not cache.host_path.startswith("/") or ".." in cache.host_path.split("/")):
        yield Problem((*at, "host_path"), "an absolute path without ..", repr(cache.host_path))


def _of_variables(fleet: FleetSections) -> Iterator[Problem]:
    for name, text in fleet.kubernetes.env.items():
        at: Path = ("kubernetes", "env", name)
        if not _VARIABLE.fullmatch(name):
            yield Problem(at, "the name of an environment variable", repr(name))
        elif name in OWN_VARIABLES:
            known = ", ".join(sorted(OWN_VARIABLES))
            yield Problem(at, f"a variable that pods do not have already ({known})", repr(name))
        elif _SECRET.search(name):
            yield Problem(at, "nothing: put it into a Secret, and name that in kubernetes.env_from_secret", "a value")
        elif name == ENDPOINT_VARIABLE and not is_endpoint(text):
            yield Problem(at, "a URL such as http://minio.storage.svc:9000", repr(text))


def _of_edge(fleet: FleetSections) -> Iterator[Problem]:
    edge = fleet.kubernetes.edge
    if edge.kind != "none" and not edge.gateway:
        expected = f"the Gateway that the routes belong to, since kind is {edge.kind}"
        yield Problem(("kubernetes", "edge", "gateway"), expected, "none")
    if edge.kind == "none" and (edge.gateway or edge.hosts):
        expected = "gateway-api or istio, since gateway or hosts are given"
        yield Problem(("kubernetes", "edge", "kind"), expected, "none")
