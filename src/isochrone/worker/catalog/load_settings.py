"""Settings of the server for loading models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.secure.sandbox.settings import SandboxSettings


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Settings that apply to every model beside its own configuration."""

    #: NAME of the configs/NAME.pbtxt that replaces config.pbtxt where it exists; "": none.
    config_name: str = ""
    #: Models of one name in several repositories are served side by side, each under its namespace.
    namespacing: bool = False
    #: Models that load at the same time at start. More than one distorts the measurements of warm-up.
    threads: int = 1
    #: Models may load and unload others: the model control mode is explicit.
    models_may_load: bool = False
    #: How often a failed load is retried.
    retries: int = 0
    #: Backend → the batch size that completion assumes; "" applies to every backend.
    assumed_batch_sizes: Mapping[str, int] = field(default_factory=dict)
    #: Backend → default parameters of its models.
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Host policy → the CPUs of instances that have it.
    host_policies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: GPU → the share of its memory that may be used after a load; others may be used wholly.
    gpu_limits: Mapping[int, float] = field(default_factory=dict)
    #: Resource → available amount, for the rate limiter. None: no rate limiter.
    rate_limits: Mapping[str, int] | None = None
    #: How python models are confined; None: they are not.
    sandbox: SandboxSettings | None = None
    #: The models that may run code of their files unconfined. None: all.
    trusted: frozenset[str] | None = None
