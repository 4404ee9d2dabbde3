"""What a fleet must fulfil to run in a cluster: problems by path, as ``control.fleet.settings`` reports them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.network import ENDPOINT_VARIABLE
from isochrone.engines.kubernetes.render.pods import OWN_VARIABLES
from isochrone.engines.kubernetes.render.volumes import model_volumes
from isochrone.models.sources.endpoints import is_endpoint
from isochrone.settings.problems import Path, Problem, dotted
from isochrone.store.etcd.address import split_password
from isochrone.suggestions import suggestion

#: Names of Services: RFC 1035.
_SERVICE_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Names of credentials; a file of one is none.
_SECRET = re.compile(r"(SECRET|PASSWORD|TOKEN|ACCOUNT_KEY)(?!.*_FILE$)")


def problems(fleet: Fleet) -> list[Problem]:
    """All reasons why the fleet cannot be rendered."""
    rules = (_of_store, _of_names, _of_pools, _of_files, _of_volumes, _of_variables, _of_edge)
    return [problem for rule in rules for problem in rule(fleet)]


def _of_store(fleet: Fleet) -> Iterator[Problem]:
    if not fleet.store.url.startswith("etcd:"):
        expected = "etcd:http://HOST:2379, since the pods of a cluster cannot share a SQLite file"
        yield Problem(("store", "url"), expected, repr(split_password(fleet.store.url)[0]))


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
    namespace = names.namespace(fleet)
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", namespace):
        expected = "a namespace of a-z, 0-9 and -, at most 63 characters"
        yield Problem(("kubernetes", "namespace"), expected, repr(namespace))


def _of_pools(fleet: Fleet) -> Iterator[Problem]:
    for name in fleet.kubernetes.pools:
        if name not in fleet.pools:
            yield Problem(("kubernetes", "pools", name), suggestion(name, list(fleet.pools), "pool"), repr(name))
        elif fleet.pools[name].addresses:
            expected = "a pool whose workers the cluster runs, and not one with addresses"
            yield Problem(("kubernetes", "pools", name), expected, repr(name))
    for name in names.started_pools(fleet):
        pool = fleet.pools[name]
        if not pool.gpus.is_integer():
            expected = "a whole number of GPUs: Kubernetes gives no shares (resources may name a MIG slice)"
            yield Problem(("pools", name, "gpus"), expected, f"{pool.gpus:g}")
        for resource, amount in pool.resources.items():
            if not amount.is_integer() or "/" not in resource:
                expected = "a whole number of an extended resource such as nvidia.com/mig-1g.10gb"
                yield Problem(("pools", name, "resources", resource), expected, f"{amount:g} of {resource!r}")


def _of_files(fleet: Fleet) -> Iterator[Problem]:
    """Files that pods do not have."""
    tls = fleet.security.tls
    for key in ("cert", "key", "client_ca"):
        if getattr(tls, key) is not None:
            expected = "nothing, since pods do not have the file; end TLS at the edge (kubernetes.edge)"
            yield Problem(("security", "tls", key), expected, repr(getattr(tls, key)))
    for caller, token in fleet.security.tokens.items():
        expected = "nothing, since pods do not have the file and no caller is asked for a token yet"
        yield Problem(("security", "tokens", caller, "file"), expected, repr(token.file))


def _of_volumes(fleet: Fleet) -> Iterator[Problem]:
    """Volumes that no repository uses, and repositories that would get the same one."""
    volumes = model_volumes(fleet)
    for repository, volume in fleet.kubernetes.volumes.items():
        at: Path = ("kubernetes", "volumes", repository)
        if str(absolute(repository, DIRECTORY)) not in volumes:
            known = ", ".join(sorted(map(_short, volumes))) or "none"
            expected = f"a directory that repository names, or the parent of a model's source ({known})"
            yield Problem(at, expected, repr(repository))
        elif bool(volume.claim) == bool(volume.image):
            given = "both" if volume.claim else "neither"
            yield Problem(at, "either a claim or an image", given)
    named = {str(absolute(text, DIRECTORY)) for text in fleet.kubernetes.volumes}
    for volume in dict.fromkeys(volumes.values()):
        sharing = [path for path, each in volumes.items() if each == volume]
        if len(sharing) > 1 and not named.issuperset(sharing):
            directory = f"the directory {volume.sub_path} of the claim {volume.claim}"
            expected = f"a volume for each of {', '.join(map(_short, sharing))}, which would all be {directory}"
            yield Problem(("kubernetes", "volumes"), expected, f"one for {len(named.intersection(sharing))} of them")


def _of_variables(fleet: Fleet) -> Iterator[Problem]:
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


def _short(path: str) -> str:
    """A path of pods as fleet.yaml has it."""
    return path.removeprefix(f"{DIRECTORY}/")


def _of_edge(fleet: Fleet) -> Iterator[Problem]:
    edge = fleet.kubernetes.edge
    if edge.kind != "none" and not edge.gateway:
        expected = f"the Gateway that the routes belong to, since kind is {edge.kind}"
        yield Problem(("kubernetes", "edge", "gateway"), expected, "none")
    if edge.kind == "none" and (edge.gateway or edge.hosts):
        expected = "gateway-api or istio, since gateway or hosts are given"
        yield Problem(("kubernetes", "edge", "kind"), expected, "none")
