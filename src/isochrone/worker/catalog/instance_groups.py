"""The instance groups of a configuration: how many instances, on which CPUs, with which parameters.

``loading`` reads them once per load. Nothing here loads or runs a model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.errors import ConfigError
from isochrone.models.instances import configured_instances
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.catalog.load_settings import LoadSettings

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription

log = structlog.get_logger(__name__)

#: Triton's name for the policy of instances on a CPU whose group names none; on a GPU it is gpu_0, gpu_1, …
_CPU_POLICY = "cpu"


def plain_parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def load_contexts(
    description: ModelDescription,
    version: int,
    directory: Path,
    backend: str,
    settings: LoadSettings,
    server: Any = None,
) -> list[LoadContext]:
    config = description.config
    gpus = [each.gpu for each in configured_instances(config)] or [None]
    parameters = {**settings.parameters.get(backend, {}), **plain_parameters(config)}
    affinity = _affinity(parameters.get("cpus", ""), description.config_source) or _policy_cpus(config, settings)
    confinement = None
    if settings.sandbox is not None and backend == "python":
        confinement = settings.sandbox.confinement(description.name, str(directory.parent))
    return [
        LoadContext(
            description.name,
            str(version),
            # Absolute: a model may change its working directory, and errors name the files of the model.
            directory.absolute(),
            config,
            description.signature,
            index,
            affinity[index % len(affinity)] if affinity else (),
            parameters,
            server,
            description.model_object.make if description.model_object is not None else None,
            description.config_source,
            gpu,
            settings.gpu_limits.get(gpu or 0, 1.0),
            confinement,
            settings.trusted is None or description.name in settings.trusted,
        )
        for index, gpu in enumerate(gpus)
    ]


def check_group_settings(description: ModelDescription, settings: LoadSettings) -> None:
    """Warns of settings that need a flag of the server; raises for those that the model cannot have."""
    config = description.config
    limited = any(group.rate_limiter.resources for group in config.instance_group)
    if limited and settings.rate_limits is None:
        log.warning("instance_group.rate_limiter has no effect without --rate-limit=execution_count", model=config.name)
    elif limited and (config.HasField("sequence_batching") or config.model_transaction_policy.decoupled):
        raise ConfigError(
            description.config_source,
            "instance_group.rate_limiter",
            "none for sequence and decoupled models, whose instances run several requests at once",
            "resources",
        )
    for name in {group.host_policy for group in config.instance_group} - {"", *settings.host_policies}:
        log.warning(
            "instance_group.host_policy has no effect: start the server with --host-policy",
            model=config.name,
            policy=name,
        )


def _policy_cpus(config: Any, settings: LoadSettings) -> list[tuple[int, ...]]:
    """The CPUs of each instance by host policy; empty: no policy is set."""
    policies = settings.host_policies
    if not policies:
        return []
    return [
        policies.get(each.group.host_policy or (_CPU_POLICY if each.gpu is None else f"gpu_{each.gpu}"), ())
        for each in configured_instances(config)
    ]


def _affinity(text: str, where: str) -> list[tuple[int, ...]]:
    """``cpus: "0,1;2,3"``: the CPUs of each instance, instances separated by semicolons."""
    key = 'parameters["cpus"]'
    try:
        affinity = [tuple(int(cpu) for cpu in part.split(",")) for part in text.split(";") if part.strip()]
    except ValueError:
        raise ConfigError(where, key, 'CPUs as in "0,1;2,3"', repr(text)) from None
    usable = os.sched_getaffinity(0)
    for cpus in affinity:
        if not usable.issuperset(cpus):
            raise ConfigError(where, key, f"of the CPUs {sorted(usable)}", repr(text))
    return affinity
