"""Keys of the activation cache: which earlier pictures a request's picture is compared with. Pure.

A key names a camera (temporal), or a place (spatial: a tile, or the grid cell of a pose). It only finds candidates;
similarity decides. It also covers everything beside the picture that can change an answer: the version's digest, the
picture's shape and type, the requested outputs, and the request's other parameters. Those may be of any size, and the
cache keeps keys: they are in it as a fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from isochrone.errors import InvalidArgument
from isochrone.worker.activation_cache.settings import SPATIAL, TEMPORAL

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameter, Parameters, Plan

#: Parameters that name a camera; the first that a request has. The second is the header of that name, if the server
#: forwards it (--http-header-forward-pattern, --grpc-header-forward-pattern).
_CAMERAS: Final = ("camera", "x-agent-id")
_TILE: Final = "tile"
_POSE: Final = "pose"
#: Parameters that change no answer: those of keys, and of the transport.
_NO_CONTENT: Final = frozenset((*_CAMERAS, _TILE, _POSE, "binary_data_output", "triton_enable_empty_final_response"))
#: Characters of a camera or tile.
_LONGEST: Final = 256

Keyed = tuple[str, "Parameter"]


class ActivationKey(NamedTuple):
    """One camera or place of one version."""

    scope: str
    #: The parameter and its value; of a pose, the cell.
    place: tuple[object, ...]
    digest: str
    #: Of everything else that can change an answer.
    fingerprint: bytes


def activation_keys(plan: Plan, digest: str, scopes: Sequence[str], grid: tuple[float, ...]) -> list[ActivationKey]:
    """Temporal before spatial; empty: the request names neither. Raises ``InvalidArgument`` for a malformed one."""
    parameters = plan.parameters
    if not parameters:
        return []
    places: list[tuple[str, tuple[object, ...]]] = []
    if TEMPORAL in scopes:
        camera = next((name for name in _CAMERAS if name in parameters), None)
        if camera is not None:
            places.append((TEMPORAL, _named("camera", parameters[camera])))
    if SPATIAL in scopes:
        if _TILE in parameters:
            places.append((SPATIAL, _named(_TILE, parameters[_TILE])))
        elif grid and _POSE in parameters:
            places.append((SPATIAL, (_POSE, *_cell(parameters[_POSE], grid))))
    if not places:
        return []
    fingerprint = _fingerprint(plan, parameters)
    return [ActivationKey(scope, place, digest, fingerprint) for scope, place in places]


def _fingerprint(plan: Plan, parameters: Parameters) -> bytes:
    others = sorted(item for item in parameters.items() if item[0] not in _NO_CONTENT)
    # repr of nested tuples of str, int, float and bool is unambiguous: 1, 1.0, True and "1" differ.
    content = repr((plan.inputs, plan.outputs, others))
    # 256 bits: a collision would give one caller another's answer.
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _named(name: str, value: Parameter) -> tuple[object, ...]:
    fits = 0 < len(value) <= _LONGEST if isinstance(value, str) else abs(value) < 1 << 64
    if isinstance(value, bool | float) or not fits:
        shown = value[:40] if isinstance(value, str) else f"a {type(value).__name__}"
        raise InvalidArgument(
            f"parameter '{name}': expected a whole number of 64 bits or a text of 1 to {_LONGEST} characters, which"
            f" names what the picture shows, given {shown!r}"
        )
    return name, value


def _cell(pose: Parameter, grid: tuple[float, ...]) -> tuple[int, ...]:
    """The grid cell of ``"x,y,heading"``, or of however many components the model's grid has."""
    try:
        numbers = [float(part) for part in str(pose).split(",")] if len(str(pose)) <= _LONGEST else []
        cell = tuple(math.floor(number / size) for number, size in zip(numbers, grid, strict=True))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"parameter 'pose': expected {len(grid)} numbers between commas, as the model's activation_cache_grid has"
            f" components, given {str(pose)[:80]!r}"
        ) from None
    return cell
