"""An ``InferenceService`` for one grant: each request for inference needs its model and priority to be covered.

Requests of other kinds name their model in a path or in a message that ``applications.authenticated`` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from isochrone.errors import IsochroneError, Unauthenticated
from isochrone.secure.access.permissions import INFERENCE

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.services.service import InferenceService
    from isochrone.secure.access.grants import Grant
    from isochrone.wire.exchange import Exchange

#: Called with the grant, if it is still known, the permission, the exchange, if there is one yet, and the error.
Refused = Callable[["Grant | None", str, "Exchange | None", IsochroneError], None]


class GuardedService:
    def __init__(self, service: InferenceService, grant: Grant, refused: Refused | None = None) -> None:
        """``refused`` counts requests that the grant does not cover; None: nothing does."""
        self._service = service
        self._refused = refused
        # Weak: a grant is the key of the application that has this service. A message's head keeps its grant.
        self._grant = ref(grant)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def declared_inputs(self, model_name: str, model_version: str) -> Any:
        """Fronts read them before they make a request, and say in errors what they have read."""
        try:
            self._require(model_name, 0)
        except IsochroneError as error:
            self._count(None, error)
            raise
        return self._service.declared_inputs(model_name, model_version)

    def infer(self, request: InferRequest) -> None:
        plan = request.plan
        try:
            self._require(plan.model_name, plan.priority)
        except IsochroneError as error:
            self._count(request.exchange_of(), error)
            raise
        self._service.infer(request)

    @property
    def uncounted(self) -> GuardedService:
        """The same for lists, which leave out what their caller may not use: nobody asked for that."""
        grant = self._grant()
        return self if grant is None else GuardedService(self._service, grant)

    def _count(self, exchange: Exchange | None, error: IsochroneError) -> None:
        if self._refused is not None:
            self._refused(self._grant(), INFERENCE, exchange, error)

    def _require(self, model: str, priority: int) -> None:
        grant = self._grant()
        if grant is None:
            raise Unauthenticated("the credential of this request is no longer known; send the request again")
        grant.require(INFERENCE, model, priority)
