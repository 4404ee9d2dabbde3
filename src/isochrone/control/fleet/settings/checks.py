"""Checks of settings that depend on each other: names that must exist, settings that need or exclude others. Pure.

They run once for every fleet, from a file or from the store. Problems have a path, which ``reading`` turns into a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from isochrone.control.fleet.settings.autoscale_spec import Autoscale
from isochrone.control.fleet.settings.model_spec import Canary, ModelDefaults
from isochrone.control.fleet.settings.pool_bounds import at_largest
from isochrone.control.fleet.settings.process_names import names_of
from isochrone.control.fleet.settings.process_ports import EVERYWHERE, controller_ports, gateway_ports, worker_ports
from isochrone.control.fleet.settings.quantities import bytes_text
from isochrone.control.fleet.settings.sections import FleetSections, Pool
from isochrone.control.fleet.settings.security_spec import Audit, Tls
from isochrone.gateway.upstream.addresses import parse_upstream
from isochrone.settings.problems import Path, Problem, dotted
from isochrone.suggestions import suggestion

#: Flags of ``isochrone serve`` that a pool's ``arguments`` must not name.
_OWN_FLAGS = frozenset(
    (
        "--http-port",
        "--grpc-port",
        "--metrics-port",
        "--model-control-mode",
        "--model-repository",
        "--load-model",
        "--store",
        "--fleet",
        "--name",
        "--pool",
        "--tier",
        "--device",
        "--memory",
        "--region",
        "--lease-seconds",
    )
)
#: Keys of the gateway's rules for a model that have their own key in fleet.yaml.
_PLACES = {
    "policy": "policy",
    "policy_options": "policy_options",
    "affinity": "affinity",
    "division": "division",
    "deadline_ms": "slo.deadline_ms",
    "priority": "slo.priority",
    "canary": "rollout.canary",
}


def problems(fleet: FleetSections) -> list[Problem]:
    """All problems of a fleet whose single settings are valid."""
    found: list[Problem] = []
    for pool, spec in fleet.pools.items():
        found += _of_pool(("pools", pool), spec)
    for group, gateway in fleet.gateways.items():
        if gateway.processes > 1 and gateway.listen.endswith(":0"):
            expected = "a port other than 0, since each of its processes would pick another free one"
            found.append(Problem(("gateways", group, "listen"), expected, gateway.listen))
    found += _unseen_gateways(fleet)
    found += _of_defaults(("defaults",), fleet.defaults, fleet)
    # Problems of the defaults are reported once, not again for each model.
    said = {(problem.path[1:], problem.given) for problem in found if problem.path[0] == "defaults"}
    found += [each for each in _of_models(fleet) if (each.path[2:], each.given) not in said]
    if fleet.security.access is not None and fleet.control.token_file is not None:
        expected = "nothing beside security.access, whose file has tokens of its own"
        found.append(Problem(("control", "token_file"), expected, repr(fleet.control.token_file)))
    tls = fleet.security.tls
    if bool(tls.cert) != bool(tls.key):
        missing = "key" if tls.cert else "cert"
        found.append(Problem(("security", "tls", missing), "a file, since cert and key go together", "nothing"))
    elif tls.cert and not tls.ca:
        expected = "a file, since the fleet's processes verify each other by it"
        found.append(Problem(("security", "tls", "ca"), expected, "nothing"))
    elif not tls.cert and tls != Tls():
        found.append(Problem(("security", "tls", "cert"), "a file, since nothing is encrypted without it", "nothing"))
    found += _of_audit(fleet.security.audit)
    found += _same_address_twice(fleet)
    # Names and ports follow from the counts, so the counts must be valid first.
    return found or [*_same_name_twice(at_largest(fleet)), *_ports(at_largest(fleet))]


def _of_audit(audit: Audit) -> Iterator[Problem]:
    at = ("security", "audit")
    if not audit.directory and audit != Audit():
        yield Problem((*at, "directory"), "a directory, since nothing is recorded without it", "nothing")
    hashed = [field for field, how in audit.redact.rules if how == "hash"]
    if hashed and audit.key is None:
        expected = "a file, since guessing names would undo a hash without a key"
        yield Problem((*at, "key"), expected, "nothing")


def _of_pool(at: Path, pool: Pool) -> Iterator[Problem]:
    if pool.max is not None and pool.min > pool.max:
        yield Problem((*at, "min"), f"at most max, which is {pool.max}", str(pool.min))
    elif pool.addresses:
        if pool.workers:
            yield Problem((*at, "workers"), "0, since addresses names servers that run already", str(pool.workers))
        for name in ("first_port", "arguments", "warm"):
            if value := getattr(pool, name):
                yield Problem((*at, name), "nothing, since addresses names servers that run already", repr(value))
        if pool.autoscale is not None:
            yield Problem((*at, "autoscale"), "nothing, since addresses names servers that run already", "it")
    elif pool.kind == "triton":
        expected = "addresses of running servers, since kind is triton: only our own workers can be started"
        yield Problem((*at, "addresses"), expected, "none")
    elif pool.workers < pool.min:
        yield Problem((*at, "workers"), f"at least min, which is {pool.min}", str(pool.workers))
    elif pool.max is not None and pool.workers > pool.max:
        yield Problem((*at, "workers"), f"at most max, which is {pool.max}", str(pool.workers))
    elif pool.max is not None and pool.warm > pool.max:
        yield Problem((*at, "warm"), f"at most max, which is {pool.max}", str(pool.warm))
    elif pool.autoscale is not None:
        yield from _of_autoscale(at, pool, pool.autoscale)
    if pool.is_planned and pool.warm:
        yield Problem(
            (*at, "warm"), "0, since replicas is planned: a standby worker would have no models", str(pool.warm)
        )
    if pool.is_planned and pool.autoscale is not None:
        yield Problem((*at, "autoscale"), "nothing: a planned pool has a fixed size", "a section")
    for index, word in enumerate(pool.arguments):
        if word.partition("=")[0] in _OWN_FLAGS:
            yield Problem((*at, "arguments", index), "a flag that the fleet does not set itself", repr(word))


def _of_autoscale(at: Path, pool: Pool, autoscale: Autoscale) -> Iterator[Problem]:
    if not pool.max:
        given = "nothing" if pool.max is None else "0"
        yield Problem((*at, "max"), "the most workers that autoscale may start, at least 1", given)
    is_emptied = autoscale.zero_after_seconds is not None
    if is_emptied and pool.min:
        expected = f"nothing, or min: 0, since min is {pool.min} and the pool is never empty"
        yield Problem((*at, "autoscale", "zero_after_seconds"), expected, f"{autoscale.zero_after_seconds:g}")
    if autoscale.zero_after_seconds is not None and autoscale.zero_after_seconds < autoscale.start_up_seconds:
        expected = (
            f"at least {autoscale.start_up_seconds:g}, as start_up_seconds: a worker must serve before it is idle"
        )
        yield Problem((*at, "autoscale", "zero_after_seconds"), expected, f"{autoscale.zero_after_seconds:g}")
    if not is_emptied and not pool.workers:
        expected = "at least 1: a pool starts empty only with autoscale.zero_after_seconds"
        yield Problem((*at, "workers"), expected, "0")
    least = (max(1, pool.min) + pool.warm) * autoscale.cost_per_worker
    if autoscale.cost_cap is not None and autoscale.cost_cap < least:
        expected = f"at least {least:g}, the cost of the fewest workers (cost_per_worker, min and warm)"
        yield Problem((*at, "autoscale", "cost_cap"), expected, f"{autoscale.cost_cap:g}")


def _of_models(fleet: FleetSections) -> Iterator[Problem]:
    for name, model in fleet.models.items():
        at: Path = ("models", name)
        yield from _of_defaults(at, model, fleet)
        if model.source is not None and PurePath(model.source).name != name:
            yield Problem((*at, "source"), f"a directory called '{name}', as the model is", repr(model.source))
        for pool in fleet.pools_of(name):
            room = fleet.pools[pool].memory if pool in fleet.pools else 0
            if room and model.memory > room:
                expected = f"at most the memory of pool {pool}, which is {bytes_text(room)}"
                yield Problem((*at, "memory"), expected, bytes_text(model.memory))
        for index, other in enumerate(model.changes_with):
            if other == name or other not in fleet.models:
                known = [each for each in fleet.models if each != name]
                yield Problem((*at, "with", index), _one_of(other, known, "model"), repr(other))
        for index, stage in enumerate(model.stages):
            if stage == name:
                yield Problem((*at, "stages", index), "a model other than the ensemble itself", repr(stage))


def _of_defaults(at: Path, model: ModelDefaults, fleet: FleetSections) -> Iterator[Problem]:
    for index, pool in enumerate(model.pools):
        if pool not in fleet.pools:
            yield Problem((*at, "pools", index), _one_of(pool, list(fleet.pools), "pool"), repr(pool))
    for key in model.traffic:
        if key in _PLACES:
            yield Problem((*at, "traffic", key), f"this in its own place, {_PLACES[key]}", "it here")
        elif key == "digest":
            yield Problem((*at, "traffic", key), "nothing: a digest is agreed by the workers in a rollout", "it here")
    if model.rollout.canary is not None:
        yield from _of_canary((*at, "rollout", "canary"), model.rollout.canary)


def _unseen_gateways(fleet: FleetSections) -> Iterator[Problem]:
    """Gateways without a metrics page: an evaluation reads the counts of every gateway there."""
    places: list[tuple[Path, ModelDefaults]] = [(("defaults",), fleet.defaults)]
    places += [(("models", name), model) for name, model in fleet.models.items()]
    for at, model in places:
        for word in ("canary", "compare"):
            if getattr(model.rollout, word) is not None:
                expected = f"a port, since {dotted((*at, 'rollout', word))} reads the counts of every gateway there"
                for group in fleet.gateways_without_metrics:
                    yield Problem(("gateways", group, "metrics_port"), expected, "-1")
                # One report is enough.
                return


def _of_canary(at: Path, canary: Canary) -> Iterator[Problem]:
    steps = canary.steps
    if not steps or any(not 0 < step < 1 for step in steps) or list(steps) != sorted(set(steps)):
        given = ", ".join(f"{step:.4g}" for step in steps) or "none"
        yield Problem((*at, "steps"), "growing shares above 0% and below 100%, such as [5%, 25%, 50%]", given)
    for name in ("quantile", "significance"):
        if not 0 < (share := getattr(canary, name)) < 1:
            yield Problem((*at, name), "a share above 0 and below 1", f"{share:g}")
    if canary.min_seconds > canary.max_seconds:
        given = f"{canary.min_seconds:g}"
        yield Problem((*at, "min_seconds"), f"at most max_seconds, which is {canary.max_seconds:g}", given)


def _one_of(word: str, known: Sequence[str], kind: str) -> str:
    return suggestion(word, list(known), kind) if known else f"no {kind}: there is none to name"


def _same_name_twice(fleet: FleetSections) -> Iterator[Problem]:
    seen: dict[str, Path] = {}
    for path, names in names_of(fleet):
        for name in names:
            if name in seen:
                expected = f"a name whose processes have other names than those of {dotted(seen[name])}"
                yield Problem(path, expected, f"a second '{name}'")
                break
            seen[name] = path


def _same_address_twice(fleet: FleetSections) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for pool, spec in fleet.pools.items():
        for index, text in enumerate(spec.addresses):
            address = parse_upstream(text).address
            if address in seen:
                yield Problem(("pools", pool, "addresses", index), f"another address than in {seen[address]}", address)
            seen.setdefault(address, f"pools.{pool}.addresses[{index}]")


def _ports(fleet: FleetSections) -> Iterator[Problem]:
    """Two processes on one port, or a port above 65535."""
    taken: dict[int, list[tuple[str, Path]]] = {}
    for path, host, port in [*controller_ports(fleet), *gateway_ports(fleet), *worker_ports(fleet)]:
        if port > 65535:
            yield Problem(path, "ports that count up to at most 65535", str(port))
            return
        for other, where in taken.get(port, ()):
            if host == other or host in EVERYWHERE or other in EVERYWHERE:
                yield Problem(path, f"ports that {dotted(where)} does not take", f"port {port} again")
                return
        taken.setdefault(port, []).append((host, path))
