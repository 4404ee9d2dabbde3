"""Headers that become request parameters: Triton's ``--http-header-forward-pattern`` and its gRPC sister.

A service in front of the real one, made once per distinct message head that has such headers. Requests of other heads
never come here, so they pay nothing.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Parameters, Plan
    from isochrone.protocol.service import InferenceService
    from isochrone.wire.exchange import Head

_MAX_PLANS = 64


def forwarded(pattern: re.Pattern[str], head: Head) -> Parameters:
    """The parameters that a head's headers make. As Triton, a match anywhere in the name, in any case, is enough."""
    headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    return {name: value for name, value in headers if not name.startswith(":") and pattern.search(name)}


class WithHeaders:
    """An ``InferenceService`` whose requests carry the parameters of one head."""

    def __init__(self, service: InferenceService, parameters: Parameters) -> None:
        self._service = service
        self._parameters = parameters
        #: Plans are shared between heads; this head's own are copies, kept so that each is checked once.
        self._plans: dict[Plan, Plan] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def infer(self, request: InferRequest) -> None:
        plan = self._plans.get(request.plan)
        if plan is None:
            plan = copy.copy(request.plan)
            plan.parameters = {**plan.parameters, **self._parameters}
            plan.checked_by = None
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[request.plan] = plan
        request.plan = plan
        self._service.infer(request)
