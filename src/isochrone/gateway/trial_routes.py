"""Two pages beside the metrics, for controllers: ``GET /trials`` and ``GET /samples/<model>``.

The first tells how versions under trial do; the second gives a sample of live requests, and keeps sampling on while it
is asked for. Samples are callers' data: whoever reaches the metrics port can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from isochrone.errors import MethodNotAllowed, NotFound
from isochrone.gateway.sampling import SampleReport
from isochrone.gateway.trials import TrialReport
from isochrone.protocol.rest import ErrorRoute
from isochrone.protocol.rest_answers import JSON, respond_error
from isochrone.wire.exchange import Exchange, Head, Route

_TRIALS = b"/trials"
_SAMPLES = b"/samples/"


class TrialPages:
    """The pages, from what a gateway hands in: all trials by model; one model's sample, None for an unknown model."""

    def __init__(
        self, trials: Callable[[], Mapping[str, TrialReport]], sample: Callable[[str], SampleReport | None]
    ) -> None:
        self._trials = trials
        self._sample = sample

    def route(self, head: Head) -> Route | None:
        """None: the path is somebody else's."""
        path = head.target.partition(b"?")[0]
        if path != _TRIALS and not path.startswith(_SAMPLES):
            return None
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed(f"{path.decode('latin-1')[:200]}: expected GET"))
        if path == _TRIALS:
            return _TrialsRoute(self._trials)
        return _SamplesRoute(self._sample, unquote_to_bytes(path.removeprefix(_SAMPLES)).decode("utf-8", "replace"))


class _TrialsRoute(Route):
    def __init__(self, trials: Callable[[], Mapping[str, TrialReport]]) -> None:
        self._trials = trials

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200, JSON, [msgspec.json.encode(self._trials())])


class _SamplesRoute(Route):
    def __init__(self, sample: Callable[[str], SampleReport | None], model: str) -> None:
        self._sample = sample
        self._model = model

    def handle(self, exchange: Exchange) -> None:
        report = self._sample(self._model)
        if report is None:
            respond_error(exchange, NotFound(f"unknown model '{self._model[:200]}': nothing to sample"))
        else:
            exchange.respond(200, JSON, [msgspec.json.encode(report)])
