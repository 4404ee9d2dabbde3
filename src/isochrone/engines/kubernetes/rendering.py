"""Every format of ``isochrone render kubernetes``: a fleet in, texts by path out. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from isochrone.control.fleet.reading.passwords import without_password
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.packaging.helm import NAMESPACE, helm_files
from isochrone.engines.kubernetes.packaging.kustomize import kustomize_files
from isochrone.engines.kubernetes.packaging.manifests import manifest_files
from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.engines.kubernetes.problems import problems
from isochrone.engines.kubernetes.render.fleet_objects import parts
from isochrone.engines.kubernetes.variants.engine import engine_parts
from isochrone.engines.kubernetes.variants.kserve import serving_runtimes
from isochrone.engines.kubernetes.variants.kuberay import ray_cluster
from isochrone.settings.lines import Lines
from isochrone.settings.problems import Problem, settings_error

Format = Literal["manifests", "engine", "helm", "kustomize", "kserve", "kuberay"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: Formats that are a directory, and no stream of documents.
DIRECTORIES: tuple[Format, ...] = ("helm", "kustomize")


def rendered(fleet: Fleet, text: str, where: str, lines: Lines | None, form: Format = "manifests") -> dict[str, str]:
    """The files of a format. ``text`` is the fleet.yaml; ``where`` and ``lines`` place its errors.

    Raises ``SettingsError`` with all that keeps the fleet from running in a cluster.
    """
    # A runtime of KServe has no fleet, and needs no store.
    if form != "kserve" and (found := problems(fleet)):
        raise settings_error(found, where, lines)
    fleet, kept = without_password(fleet, text)
    if text and not kept:
        # It is escaped in the file, and cannot be taken out of it.
        expected = "a URL without the password: put it into a Secret (kubernetes.store_secret)"
        raise settings_error([Problem(("store", "url"), expected, "one with a password")], where, lines)
    match form:
        case "manifests":
            return manifest_files(parts(fleet, kept))
        case "engine":
            return manifest_files(engine_parts(fleet, kept))
        case "kustomize":
            return kustomize_files(fleet, parts(fleet, kept))
        case "helm":
            kubernetes = fleet.kubernetes.model_copy(update={"namespace": NAMESPACE})
            return helm_files(fleet.name, parts(fleet.model_copy(update={"kubernetes": kubernetes}), kept))
        case "kserve":
            return {"serving-runtimes.yaml": yaml_text(serving_runtimes(fleet))}
        case "kuberay":
            return {"ray-cluster.yaml": yaml_text(ray_cluster(fleet, kept))}
