"""How models are loaded, as the server was started: what holds for every model beside its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Settings of a server that its models' configurations do not override unless a field says so."""

    #: Each model's configs/NAME.pbtxt, where it has one; "": config.pbtxt.
    config_name: str = ""
    #: Models of one name in several repositories are served side by side, each under its namespace.
    namespacing: bool = False
    #: Models that load at once at start. More than one falsifies what warm-up measures.
    threads: int = 1
    #: How often a load that failed is tried again.
    retries: int = 0
    #: Backend → the batch size that is assumed where a configuration leaves it out; "" holds for every backend.
    assumed_batch_sizes: Mapping[str, int] = field(default_factory=dict)
    #: Backend → parameters of models that do not set them.
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Host policy → the CPUs of instances that have it.
    host_policies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: Resource → how much of it there is, for instances that ask for some before they run. None: they need not ask.
    rate_limits: Mapping[str, int] | None = None
