"""Every format of ``isochrone render kubernetes``: a fleet in, texts by path out. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from isochrone.control.fleet.planning.ineffective import NO_AUTOSCALE
from isochrone.control.fleet.reading.parsing import examine
from isochrone.control.fleet.reading.passwords import without_password
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.packaging.helm import NAMESPACE, helm_files
from isochrone.engines.kubernetes.packaging.kustomize import kustomize_files
from isochrone.engines.kubernetes.packaging.manifests import manifest_files
from isochrone.engines.kubernetes.packaging.yaml_text import yaml_text
from isochrone.engines.kubernetes.problems import autoscaled_standbys, loopback_stores, problems
from isochrone.engines.kubernetes.render.fleet_objects import parts
from isochrone.engines.kubernetes.variants.engine import engine_parts
from isochrone.engines.kubernetes.variants.kserve import serving_runtimes
from isochrone.engines.kubernetes.variants.kuberay import ray_cluster
from isochrone.settings.problems import Problem, settings_error

Format = Literal["manifests", "engine", "helm", "kustomize", "kserve", "kuberay"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: Formats that are a directory, and no stream of documents.
DIRECTORIES: tuple[Format, ...] = ("helm", "kustomize")


def rendered(text: str, where: str, form: Format = "manifests") -> dict[str, str]:
    """The files of a format. ``text`` is the fleet.yaml, which ``where`` names in errors.

    Raises ``SettingsError`` with all mistakes of the file and all that keeps the fleet from running in a cluster.
    """
    examined = examine(text, where)
    found = list(examined.problems)
    # A runtime of KServe has no fleet, and needs no store.
    if examined.fleet is not None and form != "kserve":
        of_cluster = problems(examined.fleet)
        if all(each.path[0] != "store" for each in of_cluster):
            of_cluster += loopback_stores(examined.fleet)
        if form != "engine":
            of_cluster += autoscaled_standbys(examined.fleet)
        more = (each for each in of_cluster if each not in found)
        found += [each for each in more if not examined.is_about_mistakes(each)]
    if found or examined.fleet is None:
        raise settings_error(found, where, examined.lines)
    fleet, kept = without_password(examined.fleet, text)
    if text and not kept:
        # It is escaped in the file, and cannot be taken out of it.
        expected = "a URL without the password: put it into a Secret (kubernetes.store_secret)"
        raise settings_error([Problem(("store", "url"), expected, "one with a password")], where, examined.lines)
    return _files(fleet, kept, form)


def notes(text: str, where: str, form: Format = "manifests") -> list[str]:
    """Settings of a fleet.yaml that the rendered objects do not use."""
    fleet = examine(text, where).fleet
    # On a Ray cluster, a supervisor of the engine ray runs the processes.
    if fleet is None or form in ("kserve", "kuberay"):
        return []
    return [f"pools.{pool}: {NO_AUTOSCALE}" for pool, spec in fleet.pools.items() if spec.autoscale is not None]


def _files(fleet: Fleet, kept: str, form: Format) -> dict[str, str]:
    """``kept``: the file without its password."""
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
