"""The plan of a call whose authority pins a version (``headers.version_pins``): as decoded, with that version.

Messages are decoded without regard to the authority, since all calls share the decoder's memory. A plan keeps its
copies with versions: the decoder remembers and forgets them together, and each is checked once, whatever differs in the
heads of the calls.
"""

from __future__ import annotations

from urllib.parse import quote

from isochrone.errors import InvalidArgument
from isochrone.protocol.grpc.plan import GrpcPlan
from isochrone.protocol.headers.version_pins import Pin

#: Versions of one plan that are kept. Committed are at most three: the present, the previous, the one under evaluation.
_MOST = 8


def pinned_plan(plan: GrpcPlan, pin: Pin) -> GrpcPlan:
    """Raise ``InvalidArgument`` for a message that contradicts the pin."""
    if plan.model_name != pin.model:
        raise InvalidArgument(
            f"the call was routed to model '{pin.model}', and its message names model '{plan.model_name}'; "
            "send the metadata x-isochrone-model with the name in the message"
        )
    if plan.model_version == pin.version:
        return plan
    known = plan.pinned
    if known is None:
        known = plan.pinned = {}
    found = known.get(pin.version)
    if found is None:
        if len(known) >= _MOST:
            known.clear()
        found = known[pin.version] = _made(plan, pin)
    return found


def _made(plan: GrpcPlan, pin: Pin) -> GrpcPlan:
    if plan.model_version:
        name = quote(pin.model, safe="")
        raise InvalidArgument(
            f"the call was routed to version {pin.version} of model '{pin.model}', and its message names version "
            f"{plan.model_version}; send the metadata x-isochrone-model: {name}={plan.model_version}"
        )
    other = plan.copy()
    other.model_version, other.key = pin.version, (pin.model, pin.version)
    # What was found out about the plan holds for another version.
    other.checked_by, other.step_plans, other.answers, other.pinned = None, None, {}, None
    return other
