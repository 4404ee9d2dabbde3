"""Plan steps for settings that are checked and that this release, the engine or the fleet does not use. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.control.fleet.planning.steps import IGNORE, Step
from isochrone.control.fleet.settings.observability_spec import Observability
from isochrone.control.fleet.settings.sections import Gateway
from isochrone.control.fleet.settings.security_spec import Security
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES
from isochrone.settings.sections import Section

#: Keys of a gateway that are checked and not used yet.
_OF_GATEWAY = ("tier",)
#: Keys of a model that only planned pools use.
_OF_PLANNED = ("min_replicas", "alone", "apart")
#: Parts of sections that are used.
_USED = (
    ("observability", "tracing"),
    ("observability", "access_log"),
    ("observability", "recorder"),
    ("security", "audit"),
    ("security", "access"),
    ("security", "encryption"),
    ("security", "key"),
    ("security", "key_required"),
    ("security", "sandbox"),
    ("security", "signatures"),
    ("security", "tls"),
)
_DETAIL = "has no effect in this release"
#: Why a pool's ``autoscale`` does nothing in a cluster.
NO_AUTOSCALE = "autoscale has no effect in a cluster; kubernetes.autoscaler scales rendered pools with max"
NO_AUDIT = "no effect in a cluster: what a pod writes to its directory is lost with it"
NO_KEY = "no effect on workers and metrics ports without security.key: they answer every caller"
NO_TOKEN = "token_file has no effect in a cluster: every client that reaches the API may change the fleet"


def ineffective(fleet: Fleet, engine: str) -> Iterator[Step]:
    """``engine``: the one that runs the processes."""
    for key, section, default in (
        ("security", fleet.security, Security()),
        ("observability", fleet.observability, Observability()),
    ):
        for name in _made(section, default, tuple(type(section).model_fields)):
            if (key, name) in _USED:
                continue
            yield Step(IGNORE, "fleet", f"{key}.{name}", _DETAIL)
    if fleet.control.token_file is not None and engine == KUBERNETES:
        yield Step(IGNORE, "controller", "control", NO_TOKEN)
    if fleet.security.audit.directory and engine == KUBERNETES:
        yield Step(IGNORE, "fleet", "security.audit", NO_AUDIT)
    for group, gateway in fleet.gateways.items():
        for name in _made(gateway, Gateway(), _OF_GATEWAY):
            yield Step(IGNORE, "gateway", group, f"{name} {_DETAIL}")
    for pool, spec in fleet.pools.items():
        if spec.autoscale is not None and engine == KUBERNETES:
            yield Step(IGNORE, "pool", pool, NO_AUTOSCALE)
    yield from _unplanned(fleet)
    if not fleet.security.confines:
        for name in (name for name, model in fleet.models.items() if model.trust):
            yield Step(IGNORE, "model", name, "trust has no effect without security.sandbox: every model is trusted")
    if fleet.security.access is not None and not fleet.security.guards_workers:
        yield Step(IGNORE, "fleet", "security.access", NO_KEY)


def _unplanned(fleet: Fleet) -> Iterator[Step]:
    """Settings of model placement on models that have no planned pool."""
    for name, model in fleet.models.items():
        if not any(fleet.pools[pool].is_planned for pool in fleet.pools_of(name)):
            for key in _made(model, fleet.defaults, _OF_PLANNED):
                yield Step(IGNORE, "model", name, f"{key} has no effect: none of its pools has replicas: planned")


def _made(section: Section, default: Section, names: tuple[str, ...]) -> Iterator[str]:
    return (name for name in names if getattr(section, name) != getattr(default, name))
