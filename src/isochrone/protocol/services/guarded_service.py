"""An ``InferenceService`` for one grant: each request for inference needs its model and priority to be covered.

Requests of other kinds name their model in a path or in a message that ``applications.authenticated`` reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from isochrone.errors import Unauthenticated
from isochrone.secure.access.permissions import INFERENCE

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.services.service import InferenceService
    from isochrone.secure.access.grants import Grant


class GuardedService:
    def __init__(self, service: InferenceService, grant: Grant) -> None:
        self._service = service
        # Weak: a grant is the key of the application that has this service. A message's head keeps its grant.
        self._grant = ref(grant)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def declared_inputs(self, model_name: str, model_version: str) -> Any:
        """Fronts read them before they make a request, and say in errors what they have read."""
        self._require(model_name, 0)
        return self._service.declared_inputs(model_name, model_version)

    def infer(self, request: InferRequest) -> None:
        plan = request.plan
        self._require(plan.model_name, plan.priority)
        self._service.infer(request)

    def _require(self, model: str, priority: int) -> None:
        grant = self._grant()
        if grant is None:
            raise Unauthenticated("the credential of this request is no longer known; send the request again")
        grant.require(INFERENCE, model, priority)
