"""The ``models`` and ``defaults`` of fleet.yaml, as types.

A model inherits from ``defaults`` what it leaves out: ``overlay`` merges the two while the file is read, so that a
``Model`` is complete.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from isochrone.control.fleet.settings.quantities import (
    Bytes,
    DivisionOrder,
    Milliseconds,
    Names,
    RepositoryPlace,
    Seconds,
    Share,
    Shares,
    Version,
    Words,
    switch,
)
from isochrone.control.state.rollout_records import CanaryRule, CompareRule
from isochrone.gateway.policies import DEFAULT
from isochrone.settings.sections import Section


class Slo(Section):
    """Deadline and priority of requests that carry none."""

    deadline_ms: Milliseconds = 0.0
    """Deadline of requests that carry none. 0: they have no deadline."""
    priority: int = Field(default=0, ge=0, le=100)
    """Priority of requests that carry none; 1 is the highest. 0: the worker's default."""


class Canary(Section):
    """Shares of the traffic that a new version gets step by step, and the test that judges it. true: all defaults;
    false: no canary."""

    steps: Shares = CanaryRule().weights
    """Shares of the agents that get the new version, step by step. After the last step all agents get it."""
    sticky: bool = CanaryRule().sticky
    """An agent keeps its version. false: the gateway draws for each request."""
    header: str = CanaryRule().header
    """Header in which a request asks for the new version (always) or the old one (never). "" disables it."""
    min_samples: int = Field(default=CanaryRule().min_samples, ge=1)
    """Answers that each version needs in a step before the step can pass."""
    min_seconds: Seconds = CanaryRule().min_seconds
    """Shortest duration of a step."""
    max_seconds: Seconds = CanaryRule().max_seconds
    """Longest duration of a step. Then the figures so far decide."""
    latency_ratio: float = Field(default=CanaryRule().latency_ratio, ge=1)
    """Allowed ratio of the new version's latency to the old version's, at the quantile."""
    quantile: Share = CanaryRule().quantile
    """Quantile of the latency to compare."""
    error_margin: Share = CanaryRule().error_margin
    """Allowed excess of the new version's share of failures over the old version's."""
    significance: Share = CanaryRule().significance
    """Probability of rejecting a version that meets these limits, per rollout."""

    def rule(self) -> CanaryRule:
        fields = self.model_dump(exclude={"steps"})
        return CanaryRule(weights=self.steps, **fields)


class Compare(Section):
    """Comparison of the outputs of both versions on live requests, before any caller gets the new version. true: all
    defaults; false: no comparison."""

    samples: int = Field(default=CompareRule().samples, ge=1)
    """Requests to compare."""
    relative: float = Field(default=CompareRule().relative, ge=0)
    """Allowed difference of a float, relative to the old value."""
    absolute: float = Field(default=CompareRule().absolute, ge=0)
    """Allowed difference of a float, added to the relative one."""
    allowed: Share = CompareRule().allowed
    """Share of requests that may differ."""
    timeout: Seconds = CompareRule().timeout
    """How long to wait for requests."""

    def rule(self) -> CompareRule:
        return CompareRule(**self.model_dump())


class Rollout(Section):
    """How a model changes from one version to another."""

    cutover: Literal["fast", "strict"] = "fast"
    """fast: each gateway switches when it reads the commit. strict: no request that starts after any caller has
    received the new version gets the old one; requests pause for a few milliseconds."""
    prepare_seconds: Seconds = 300.0
    """Time for a pool to load and warm up the new version: first on one worker, then again on the others. After it the
    rollout is aborted."""
    canary: Annotated[Canary | None, BeforeValidator(switch)] = None
    """Give the new version a growing share of the traffic and judge it. Off by default."""
    compare: Annotated[Compare | None, BeforeValidator(switch)] = None
    """Compare the outputs of both versions first. Off by default."""


class ModelDefaults(Section):
    """Settings of models that the file does not name, and of keys that a named model leaves out."""

    version: Version = "latest"
    """Version to serve. latest is the highest number in the repository when the file is applied; a version that is
    copied there later waits for the next apply."""
    pools: Names = ()
    """Pools that serve the model; the default is all. The stages of an ensemble must be in each of its pools."""
    slo: Slo = Slo()
    """Deadline and priority of requests that carry none."""
    policy: str = DEFAULT
    """Routing policy of the gateways."""
    policy_options: dict[str, Any] = Field(default={})
    """Options of the policy."""
    affinity: dict[str, Any] = Field(default={})
    """Which requests go to the same worker: affinity of the gateway's rules (header, sequence)."""
    division: DivisionOrder = Field(default={})
    """How requests of a divided model run: the kinds edge, split and core in the order of preference. Gateways choose
    the first that is in time. A table has order, margin_ms, return_share and hold_ms of the gateway's rules. Empty: the
    worker decides."""
    memory: Bytes = 0
    """Memory of one version on a worker; at most the memory of its pools. A version that does not fit is rejected
    before it is loaded. 0: not checked."""
    min_replicas: int = Field(default=1, ge=1, le=4096)
    """Workers that have the model, at least, in pools with replicas: planned. Other pools have it on every worker."""
    alone: bool = False
    """In pools with replicas: planned, no other model is on its workers, except the stages of its ensemble."""
    apart: bool = False
    """In pools with replicas: planned, each worker that has the model is on another machine."""
    traffic: dict[str, Any] = Field(default={})
    """Other gateway rules of the model: quota, retries, hedge, shadow, breaker, admission, balancer, tiers,
    waiting_room."""
    rollout: Rollout = Rollout()
    """How the model changes from one version to another."""


class Model(ModelDefaults):
    """One model, by its name in the repository."""

    source: RepositoryPlace | None = None
    """Directory or URL of the model, if it is outside the repository. It must have the name of the model."""
    trust: bool = False
    """With security.sandbox: the files of the model may run code inside the worker, as TorchScript and
    AOTInductor packages do. A change restarts the workers."""
    stages: Words = ()
    """Models that an ensemble runs. The default comes from its config.pbtxt."""
    changes_with: Words = Field(default=(), alias="with")
    """Models that change together with this one: an apply that changes several of them is one rollout."""


def overlay(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What is given over the defaults, section by section; lists and values replace what they stand for."""
    merged = dict(defaults)
    if "policy" in given and given["policy"] != defaults.get("policy", DEFAULT):
        # Options are of the policy they were written for.
        merged.pop("policy_options", None)
    for key, value in given.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and key != "policy_options":
            merged[key] = overlay(below, value)
        else:
            merged[key] = value
    return merged
