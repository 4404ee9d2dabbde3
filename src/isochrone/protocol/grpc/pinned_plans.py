"""The plans of calls whose authority pins a version (``version_pins``): as decoded, with that version.

Messages are decoded without regard to the authority, since all calls share the decoder's memory.
"""

from __future__ import annotations

from urllib.parse import quote

from isochrone.errors import InvalidArgument
from isochrone.protocol.grpc.plan import GrpcPlan
from isochrone.protocol.version_pins import Pin

#: Plans that are remembered. Those that the decoder does not remember never come again.
_MOST = 256


class PinnedPlans:
    """The plans of calls with one authority."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._plans: dict[GrpcPlan, GrpcPlan] = {}

    def of(self, plan: GrpcPlan) -> GrpcPlan:
        """Raise ``InvalidArgument`` for a message that contradicts the pin."""
        pinned = self._plans.get(plan)
        if pinned is None:
            if len(self._plans) >= _MOST:
                self._plans.clear()
            pinned = self._plans[plan] = self._made(plan)
        return pinned

    def _made(self, plan: GrpcPlan) -> GrpcPlan:
        pin = self._pin
        if plan.model_name != pin.model:
            raise InvalidArgument(
                f"the call was routed to model '{pin.model}', and its message names model '{plan.model_name}'; "
                "send the metadata x-isochrone-model with the name in the message"
            )
        if plan.model_version == pin.version:
            return plan
        if plan.model_version:
            name = quote(pin.model, safe="")
            raise InvalidArgument(
                f"the call was routed to version {pin.version} of model '{pin.model}', and its message names version "
                f"{plan.model_version}; send the metadata x-isochrone-model: {name}={plan.model_version}"
            )
        other = plan.copy()
        other.model_version, other.key = pin.version, (pin.model, pin.version)
        # What was found out about the plan holds for another version.
        other.checked_by, other.step_plans, other.answers = None, None, {}
        return other
