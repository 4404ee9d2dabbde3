"""Volumes of pods and where they are mounted: fleet.yaml, model repositories, the store's certificates, scratch. Pure.

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
from isochrone.models.sources.locations import is_url

STORE_FILES = "/etc/isochrone/store"
#: Home of the process, and of its caches.
_SCRATCH = "/tmp"


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
    found = _common(fleet)
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
    return found


def _common(fleet: Fleet) -> Volumes:
    found = Volumes()
    found.add({"name": "scratch", "emptyDir": {}}, {"mountPath": _SCRATCH})
    if secret := fleet.kubernetes.store_tls_secret:
        found.add(
            {"name": "store", "secret": {"secretName": secret, "defaultMode": 0o440}},
            {"mountPath": STORE_FILES, "readOnly": True},
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
