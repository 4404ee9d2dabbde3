"""The limits beyond which alerts fire: those of a fleet.yaml, and those of flags for what it does not say. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from isochrone.control.figures.objectives import DEFAULT_SECONDS, LARGEST_OBJECTIVE, OBJECTIVE
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import FlagError

#: The name of a fleet, as fleet.yaml has it.
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
#: The share of a deadline that a varying network or a stalled event loop may use up, and the least that is worth an
#: alert in seconds: below it, both are noise of an ordinary machine.
_SHARE_OF_SLO: Final = 0.1
_LEAST_JITTER, _LEAST_LAG = 0.001, 0.005
#: Seconds beyond what a rollout's own limits allow until it counts as stuck: it acts once a second, and writes records.
_ROLLOUT_SLACK: Final = 120.0


@dataclass(frozen=True, slots=True)
class Flags:
    """What a fleet.yaml does not say, or what is to differ from it. None: derived from the fleet."""

    #: Seconds of models without a deadline. The autoscaler judges such models by the same figure.
    slo_seconds: float = DEFAULT_SECONDS
    #: Share of requests that must be answered in time.
    objective: float = OBJECTIVE
    #: Share of the deadline that nine of ten requests may wait in a queue.
    queue_share: float = 0.5
    jitter_seconds: float | None = None
    loop_lag_seconds: float | None = None
    #: A GPU that computes less than this share of the time is under-used.
    gpu_share: float = 0.2
    certificate_days: float = 14.0

    def check(self) -> None:
        """Raise ``FlagError`` for the first value that makes no sense."""
        for flag, share in (
            ("--objective", self.objective),
            ("--queue-share", self.queue_share),
            ("--gpu-share", self.gpu_share),
        ):
            if not 0 < share < 1:
                raise FlagError(flag, "a share above 0% and below 100%", f"{share * 100:g}%")
        if self.objective > LARGEST_OBJECTIVE:
            raise FlagError("--objective", "at most 99.999%", f"{self.objective * 100:g}%")
        for flag, value in (
            ("--slo-ms", self.slo_seconds),
            ("--jitter-ms", self.jitter_seconds),
            ("--loop-lag-ms", self.loop_lag_seconds),
            ("--certificate-days", self.certificate_days),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise FlagError(flag, "a number above 0", f"{value:g}")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of one fleet. Times are in seconds."""

    fleet: str = "default"
    #: By model that the file names.
    slo_seconds: Mapping[str, float] = field(default_factory=dict)
    #: Of all other models.
    default_slo_seconds: float = 0.2
    objective: float = 0.99
    queue_share: float = 0.5
    jitter_seconds: float = 0.02
    loop_lag_seconds: float = 0.02
    gpu_share: float = 0.2
    certificate_days: float = 14.0
    #: One state of a rollout, or one step of its canary, lasts at most this long.
    rollout_seconds: float = 720.0
    #: A canary may be slower than the committed version by this factor.
    canary_ratio: float = 1.1


def thresholds(fleet: Fleet | None, flags: Flags, name: str = "default") -> Thresholds:
    """``name``: of the servers, where there is no fleet.yaml."""
    flags.check()
    if not _NAME.fullmatch(name):
        raise FlagError("--name", "a name of a-z, 0-9 and -", repr(name))
    if fleet is None:
        return _whole(name, {}, flags.slo_seconds, flags)
    slos = {model: each.slo.deadline_ms / 1000 or flags.slo_seconds for model, each in fleet.models.items()}
    default = fleet.defaults.slo.deadline_ms / 1000 or flags.slo_seconds
    rollouts = [each.rollout for each in (*fleet.models.values(), fleet.defaults)]
    # One worker of a pool loads a version first, then the others do.
    longest = [2 * each.prepare_seconds for each in rollouts]
    longest += [each.canary.max_seconds for each in rollouts if each.canary is not None]
    longest += [each.compare.timeout for each in rollouts if each.compare is not None]
    ratios = [each.canary.latency_ratio for each in rollouts if each.canary is not None]
    return _whole(fleet.name, slos, default, flags, max(longest), max(ratios, default=1.1))


def _whole(
    name: str,
    slos: Mapping[str, float],
    default: float,
    flags: Flags,
    rollout_seconds: float = 600.0,
    canary_ratio: float = 1.1,
) -> Thresholds:
    share = _SHARE_OF_SLO * min((*slos.values(), default))
    return Thresholds(
        fleet=name,
        slo_seconds=dict(slos),
        default_slo_seconds=default,
        objective=flags.objective,
        queue_share=flags.queue_share,
        jitter_seconds=flags.jitter_seconds or max(share, _LEAST_JITTER),
        loop_lag_seconds=flags.loop_lag_seconds or max(share, _LEAST_LAG),
        gpu_share=flags.gpu_share,
        certificate_days=flags.certificate_days,
        rollout_seconds=rollout_seconds + _ROLLOUT_SLACK,
        canary_ratio=canary_ratio,
    )
