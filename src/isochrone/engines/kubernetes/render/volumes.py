"""Volumes of pods and where they are mounted: fleet.yaml, repositories, the store's certificates, caches. Pure.

A repository is mounted at the path that it has for the processes, so that the same fleet.yaml is right on a laptop and
in pods. A repository that is a URL needs no volume.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.kubernetes_spec import ModelVolume
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY, repositories
from isochrone.engines.kubernetes.render.scheduling import memory_text
from isochrone.models.sources.locations import is_url

STORE_FILES = "/etc/isochrone/store"
SECURITY_FILES = "/etc/isochrone/security"
TLS_FILES = "/etc/isochrone/tls"
#: Home of the process, and of its caches.
_SCRATCH = "/tmp"
#: Models that were fetched from URLs; the variables that tell it to workers.
_CACHE = "/var/cache/isochrone"
CACHE_VARIABLE, CACHE_BYTES_VARIABLE = "ISOCHRONE_MODEL_CACHE", "ISOCHRONE_MODEL_CACHE_BYTES"


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes of a pod, and the mounts of its one container."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, volume: dict[str, Any], mount: dict[str, Any]) -> None:
        if all(volume["name"] != each["name"] for each in self.volumes):
            self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], **mount})


def of_controller(fleet: Fleet) -> Volumes:
    """A controller resolves ``latest`` in all repositories when a file is applied."""
    found = _common(fleet, is_controller=True)
    # A sub-path, since relative paths refer to the directory of the file, and not to where its symbolic link leads.
    found.add(
        {"name": "fleet", "configMap": {"name": names.FLEET_MAP}},
        {"mountPath": str(DIRECTORY / names.FLEET_FILE), "subPath": names.FLEET_FILE, "readOnly": True},
    )
    every = dict.fromkeys(path for pool in names.started_pools(fleet) for path in repositories(fleet, pool))
    _add_repositories(found, fleet, list(every))
    return found


def of_gateway(fleet: Fleet) -> Volumes:
    return _common(fleet)


def of_worker(fleet: Fleet, pool: str) -> Volumes:
    found = _common(fleet)
    _add_repositories(found, fleet, repositories(fleet, pool))
    if has_cache_volume(fleet, pool):
        found.add(_cache_volume(fleet), {"mountPath": _CACHE})
    return found


def has_cache_volume(fleet: Fleet, pool: str) -> bool:
    """Whether workers of a pool fetch models, and into a volume that fleet.yaml describes."""
    cache = fleet.kubernetes.cache
    return bool(cache.size or cache.host_path or cache.claim) and any(map(is_url, repositories(fleet, pool)))


def cache_environment(fleet: Fleet, pool: str) -> dict[str, str]:
    """Variables, not flags: a pool's own arguments override them."""
    if not has_cache_volume(fleet, pool):
        return {}
    cache = fleet.kubernetes.cache
    found = {CACHE_VARIABLE: _CACHE}
    if cache.size:
        # The kubelet evicts a pod whose own directory is larger: a tenth is left for what du counts and we do not.
        own = not (cache.host_path or cache.claim)
        found[CACHE_BYTES_VARIABLE] = str(cache.size - cache.size // 10 if own else cache.size)
    return {name: text for name, text in found.items() if name not in fleet.kubernetes.env}


def cache_storage(fleet: Fleet, pool: str) -> int:
    """Bytes that a worker's pod needs on the disk of its node; 0: none are stated."""
    cache = fleet.kubernetes.cache
    shared = cache.host_path or cache.claim
    return cache.size if has_cache_volume(fleet, pool) and not shared else 0


def _cache_volume(fleet: Fleet) -> dict[str, Any]:
    cache = fleet.kubernetes.cache
    if cache.host_path:
        return {"name": "model-cache", "hostPath": {"path": cache.host_path, "type": "Directory"}}
    if cache.claim:
        return {"name": "model-cache", "persistentVolumeClaim": {"claimName": cache.claim}}
    return {"name": "model-cache", "emptyDir": {"sizeLimit": memory_text(cache.size)}}


def _common(fleet: Fleet, *, is_controller: bool = False) -> Volumes:
    found = Volumes()
    found.add({"name": "scratch", "emptyDir": {}}, {"mountPath": _SCRATCH})
    if secret := fleet.kubernetes.store_tls_secret:
        found.add(
            {"name": "store", "secret": {"secretName": secret, "defaultMode": 0o440}},
            {"mountPath": STORE_FILES, "readOnly": True},
        )
    if secret := fleet.kubernetes.security_secret:
        # As a whole directory: the kubelet replaces the files in it when the Secret changes.
        authority = fleet.security.tls.client_ca
        files = [fleet.security.key, fleet.security.access if is_controller else None]
        files += [authority] if authority and str(PurePosixPath(authority).parent) == SECURITY_FILES else []
        items = [{"key": name, "path": name} for file in files if file for name in [PurePosixPath(file).name]]
        found.add(
            {"name": "security", "secret": {"secretName": secret, "defaultMode": 0o440, "items": items}},
            {"mountPath": SECURITY_FILES, "readOnly": True},
        )
    if secret := fleet.kubernetes.tls_secret:
        found.add(
            {"name": "tls", "secret": {"secretName": secret, "defaultMode": 0o440}},
            {"mountPath": TLS_FILES, "readOnly": True},
        )
    return found


def _add_repositories(found: Volumes, fleet: Fleet, paths: list[str]) -> None:
    known = model_volumes(fleet)
    for path in paths:
        if path in known:
            given = known[path]
            mount: dict[str, Any] = {"mountPath": path, "readOnly": True}
            found.add(_volume(given, fleet), {**mount, "subPath": given.sub_path} if given.sub_path else mount)


def model_volumes(fleet: Fleet) -> dict[str, ModelVolume]:
    """The volume of every repository of the fleet by its path in pods; URLs have none. Two may get the same one by
    default, which ``problems`` reports."""
    named = {str(absolute(text, DIRECTORY)): volume for text, volume in fleet.kubernetes.volumes.items()}
    every = (path for pool in names.started_pools(fleet) for path in repositories(fleet, pool))
    paths = [path for path in dict.fromkeys(every) if not is_url(path)]
    claim = f"{fleet.name}-models"
    return {
        path: named.get(path) or ModelVolume(claim=claim, sub_path=PurePosixPath(path).name if len(paths) > 1 else "")
        for path in paths
    }


def _volume(given: ModelVolume, fleet: Fleet) -> dict[str, Any]:
    if given.image:
        source = {"reference": given.image, "pullPolicy": fleet.kubernetes.pull_policy}
        return {"name": _volume_name("image", given.image), "image": source}
    claim = {"claimName": given.claim, "readOnly": True}
    return {"name": _volume_name("claim", given.claim), "persistentVolumeClaim": claim}


def _volume_name(kind: str, reference: str) -> str:
    """References may have more letters than a volume's name can hold, and differ in those alone."""
    return f"models-{hashlib.sha256(f'{kind} {reference}'.encode()).hexdigest()[:10]}"
