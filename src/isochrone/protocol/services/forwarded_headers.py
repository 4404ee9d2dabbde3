"""Headers that become request parameters: Triton's ``--http-header-forward-pattern`` and its gRPC equivalent.

``WithHeaders`` wraps the service for one distinct message head that has such headers. Requests with other heads do not
pass through it and pay nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Parameters, Plan
    from isochrone.protocol.services.service import InferenceService
    from isochrone.wire.exchange import Head

_MAX_PLANS = 64


def forwarded(pattern: re.Pattern[str], head: Head) -> Parameters:
    """The request parameters from a head's headers. As in Triton, the pattern may match any part of a name."""
    headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    return {name: value for name, value in headers if not name.startswith(":") and pattern.search(name)}


class WithHeaders:
    """An ``InferenceService`` whose requests carry the parameters of one head."""

    def __init__(self, service: InferenceService, parameters: Parameters) -> None:
        self._service = service
        self._parameters = parameters
        #: Plans are shared between heads, so this head uses copies; each copy is kept and checked once.
        self._plans: dict[Plan, Plan] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def infer(self, request: InferRequest) -> None:
        plan = self._plans.get(request.plan)
        if plan is None:
            plan = request.plan.copy()
            plan.parameters = {**plan.parameters, **self._parameters}
            plan.checked_by = None
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[request.plan] = plan
        request.plan = plan
        self._service.infer(request)
