"""Two pages beside the metrics, for controllers: ``GET /evaluations`` and ``GET /samples/<model>``.

The first tells how versions under evaluation do; the second gives a sample of live requests, and keeps sampling on
while it is asked for. Samples are callers' data: only the fleet's controller, which knows the gateway's token from the
store, may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from isochrone.errors import MethodNotAllowed, NotFound, PermissionDenied
from isochrone.gateway.evaluation.counts import EvaluationReport
from isochrone.gateway.evaluation.sampling import SampleReport
from isochrone.protocol.access import control_token
from isochrone.protocol.rest.answers import JSON, ErrorRoute, respond_error
from isochrone.wire.exchange import Exchange, Head, Route

_EVALUATIONS = b"/evaluations"
_SAMPLES = b"/samples/"


class EvaluationPages:
    """The pages, from what a gateway hands in: all evaluations by model; one model's sample, None for an unknown model;
    the token that whoever reads samples must know, "" where nobody may."""

    def __init__(
        self,
        evaluations: Callable[[], Mapping[str, EvaluationReport]],
        sample: Callable[[str], SampleReport | None],
        token: Callable[[], str],
    ) -> None:
        self._evaluations = evaluations
        self._sample = sample
        self._token = token

    def route(self, head: Head) -> Route | None:
        """None: the path is somebody else's."""
        path = head.target.partition(b"?")[0]
        if path != _EVALUATIONS and not path.startswith(_SAMPLES):
            return None
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed(f"{path.decode('latin-1')[:200]}: expected GET"))
        if path == _EVALUATIONS:
            return _EvaluationsRoute(self._evaluations)
        model = unquote_to_bytes(path.removeprefix(_SAMPLES)).decode("utf-8", "replace")
        return _SamplesRoute(self._sample, self._token, model)


class _EvaluationsRoute(Route):
    def __init__(self, evaluations: Callable[[], Mapping[str, EvaluationReport]]) -> None:
        self._evaluations = evaluations

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200, JSON, [msgspec.json.encode(self._evaluations())])


class _SamplesRoute(Route):
    def __init__(self, sample: Callable[[str], SampleReport | None], token: Callable[[], str], model: str) -> None:
        self._sample = sample
        self._token = token
        self._model = model

    def handle(self, exchange: Exchange) -> None:
        # With every call: the gateway may have joined its fleet since this head was first seen.
        token = self._token()
        if not token or not control_token.may_change(exchange.head, token):
            reason = "samples are callers' requests: the fleet's controller alone reads them"
            respond_error(exchange, PermissionDenied(reason))
            return
        report = self._sample(self._model)
        if report is None:
            respond_error(exchange, NotFound(f"unknown model '{self._model[:200]}': nothing to sample"))
        else:
            exchange.respond(200, JSON, [msgspec.json.encode(report)])
