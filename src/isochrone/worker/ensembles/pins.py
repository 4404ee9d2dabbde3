"""The versions of other models that a request runs: those that it pins (``InferRequest.stages``), or the newest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError, Unavailable

if TYPE_CHECKING:
    from isochrone.worker.served_version import ServedVersion

#: The version that serves (model, version); version "" is the newest.
Resolve = Callable[[str, str], "ServedVersion"]


def resolve_pinned(resolve: Resolve, model: str, stages: Mapping[str, str] | None, where: str) -> ServedVersion:
    """Raises ``Unavailable`` if the pinned version is not served. ``where`` begins the message."""
    asked = stages.get(model, "") if stages else ""
    if not asked:
        return resolve(model, "")
    try:
        return resolve(model, asked)
    except IsochroneError as error:
        # Never substitute another version. Not the caller's mistake: another worker may have it.
        raise Unavailable(
            f"{where}: x-isochrone-stages asks for version {asked} of step '{model}', which is not served here: {error}"
        ) from None
