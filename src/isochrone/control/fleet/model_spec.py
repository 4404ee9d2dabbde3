"""The ``models`` and ``defaults`` of fleet.yaml: what is served, how well, and how it changes. Checked, never acted on.

A model that leaves something out has it from ``defaults``: ``overlay`` lays one over the other while the file is read,
so that a ``Model`` is whole and nobody asks twice.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from isochrone.control.fleet.quantities import (
    Bytes,
    FilePath,
    Milliseconds,
    Names,
    Seconds,
    Share,
    Shares,
    Version,
    Words,
)
from isochrone.control.state.records import CanaryRule, CompareRule
from isochrone.gateway.policies import DEFAULT


class Section(BaseModel):
    """A part of the file. Unknown keys are errors; nothing is turned into another type in silence."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_given(cls, given: Any) -> Any:
        """``security:`` with nothing behind it is a section that leaves everything out."""
        return {} if given is None else given


def _switch(given: Any) -> Any:
    """``canary: true`` has all defaults; ``canary: false`` is none."""
    return {True: {}, False: None}[given] if isinstance(given, bool) else given


class Slo(Section):
    """What a model's callers can rely on."""

    deadline_ms: Milliseconds = 0.0
    """When a request that brings no deadline must be answered; 0: it has none."""
    priority: int = Field(default=0, ge=0, le=100)
    """Class of requests that name none, 1 the highest; 0: the worker's default."""


class Canary(Section):
    """How a new version is tried on a part of the traffic, and by what it is judged."""

    steps: Shares = CanaryRule().weights
    """Shares of the agents that get the new version, one after the other; all of them follow the last."""
    sticky: bool = CanaryRule().sticky
    """An agent stays with its version. Off: each request is drawn on its own."""
    header: str = CanaryRule().header
    """A request decides for itself with always or never in this header; "": none may."""
    min_samples: int = Field(default=CanaryRule().min_samples, ge=1)
    """Requests each version must have answered in a step before it is judged."""
    min_seconds: Seconds = CanaryRule().min_seconds
    """A step lasts at least so long."""
    max_seconds: Seconds = CanaryRule().max_seconds
    """And at most so long: then what is known decides."""
    latency_ratio: float = Field(default=CanaryRule().latency_ratio, ge=1)
    """The new version may be slower by this factor at the quantile."""
    quantile: Share = CanaryRule().quantile
    """Quantile of the latency that is compared."""
    error_margin: Share = CanaryRule().error_margin
    """Share of failures the new version may have beyond the old one's."""
    significance: Share = CanaryRule().significance
    """Chance of calling a good version bad, per rollout."""

    def rule(self) -> CanaryRule:
        fields = self.model_dump(exclude={"steps"})
        return CanaryRule(weights=self.steps, **fields)


class Compare(Section):
    """Outputs of the old and the new version on live requests, compared before anything is visible."""

    samples: int = Field(default=CompareRule().samples, ge=1)
    """Requests that are compared."""
    relative: float = Field(default=CompareRule().relative, ge=0)
    """Outputs are equal within this share of the old value ..."""
    absolute: float = Field(default=CompareRule().absolute, ge=0)
    """... or within this much."""
    allowed: Share = CompareRule().allowed
    """Share of samples that may differ."""
    timeout: Seconds = CompareRule().timeout
    """Seconds to wait for samples."""

    def rule(self) -> CompareRule:
        return CompareRule(**self.model_dump())


class Rollout(Section):
    """How a model goes from one version to the next."""

    cutover: Literal["fast", "strict"] = "fast"
    """fast: each gateway switches when it sees the commit. strict: no request that starts after anybody got the new
    version gets the old one, for a pause of a few milliseconds."""
    prepare_seconds: Seconds = 300.0
    """The new version must be loaded and warm everywhere within so long, or the rollout is aborted."""
    canary: Annotated[Canary | None, BeforeValidator(_switch)] = None
    """Try it on a part of the traffic first; left out: everybody at once."""
    compare: Annotated[Compare | None, BeforeValidator(_switch)] = None
    """Compare its outputs first; left out: not."""


class ModelDefaults(Section):
    """What holds for every model that does not say otherwise."""

    version: Version = "latest"
    """The version that is served; latest: the highest number in the repository when the file is applied."""
    pools: Names = ()
    """Pools whose workers serve it; none named: all of them."""
    slo: Slo = Slo()
    """Deadline and priority of requests that bring none."""
    policy: str = DEFAULT
    """How a worker is chosen: a policy of the gateway."""
    policy_options: dict[str, Any] = {}
    """What the policy is made with."""
    affinity: dict[str, Any] = {}
    """What requests stick to: affinity of the gateway's rules (header, sequence)."""
    memory: Bytes = 0
    """What it needs on a worker; 0: not stated. A version that does not fit is refused before it is loaded."""
    traffic: dict[str, Any] = {}
    """Any other rules of the gateway for a model: quota, retries, hedge, shadow, breaker, admission, tiers ..."""
    rollout: Rollout = Rollout()
    """How it goes from one version to the next."""


class Model(ModelDefaults):
    """One model."""

    source: FilePath | None = None
    """Its directory, where that is not in the repository. Must be called as the model is."""
    stages: Words = ()
    """Of an ensemble: the models its steps run; left out: read from its config.pbtxt."""
    changes_with: Words = Field(default=(), alias="with")
    """Models that change together with it, as one: an apply that changes several of them is one rollout."""


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
