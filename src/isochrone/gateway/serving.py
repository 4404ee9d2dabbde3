"""Who serves a version of a model, by what members tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from isochrone.protocol.stages import parse_stages

if TYPE_CHECKING:
    from isochrone.gateway.fleet import Member


def serving(
    members: Iterable[Member], model: str, version: str, stages: bytes, committed_digest: Callable[[str, str], str]
) -> list[Member]:
    """Members that serve it, and those that do not tell. ``version`` "": any.

    An ensemble runs where all its stages are, in the versions it is to run. The model's own digest is looked at where a
    target is chosen.
    """
    needs = parse_stages(stages) if stages else {}
    return [
        member
        for member in members
        if member.serves is None
        or (
            (version in member.serves.get(model, ()) if version else bool(member.serves.get(model)))
            and (not needs or _has_all(member.serves, needs, committed_digest))
        )
    ]


def _has_all(
    serves: Mapping[str, Mapping[str, str]], versions: Mapping[str, str], committed_digest: Callable[[str, str], str]
) -> bool:
    for model, version in versions.items():
        digest = serves.get(model, {}).get(version)
        wanted = committed_digest(model, version)
        if digest is None or (digest and wanted and digest != wanted):
            return False
    return True
