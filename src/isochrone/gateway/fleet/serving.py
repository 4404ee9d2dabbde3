"""Which endpoints serve a version of a model, by their own repository indexes. Pure.

Unknown means unserved: an endpoint whose index has not been read, or whose digest is not the committed one, is not
among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from isochrone.gateway.placement.balancer import is_committed
from isochrone.protocol.headers.stages import parse_stages

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member


def serving(
    members: Iterable[Member], model: str, version: str, stages: bytes, committed_digest: Callable[[str, str], str]
) -> list[Member]:
    """Members that serve it. ``version`` "": any.

    An ensemble runs where all its stages are, in the versions it is to run. The model's own digest is looked at where a
    replica is chosen.
    """
    needs = parse_stages(stages) if stages else {}
    return [
        member
        for member in members
        if member.serves is not None
        and (version in member.serves.get(model, ()) if version else bool(member.serves.get(model)))
        and (not needs or _has_all(member.serves, needs, committed_digest))
    ]


def _has_all(
    serves: Mapping[str, Mapping[str, str]], versions: Mapping[str, str], committed_digest: Callable[[str, str], str]
) -> bool:
    for model, version in versions.items():
        digest = serves.get(model, {}).get(version)
        if digest is None or not is_committed(digest, committed_digest(model, version)):
            return False
    return True


def newest(members: Iterable[Member], model: str) -> str | None:
    """The version that "the model" means where nothing is committed: the highest of those that most members have. None:
    no member that takes requests has any."""
    counts: dict[str, int] = {}
    for member in members:
        if not member.endpoint.healthy or member.endpoint.draining or member.endpoint.standby:
            continue
        for version in (member.serves or {}).get(model, ()):
            counts[version] = counts.get(version, 0) + 1
    return max(counts, key=lambda version: (counts[version], _number(version))) if counts else None


def _number(version: str) -> int:
    return int(version) if version.isdigit() else -1
