"""What a remote model tells those who watch its link: every answer, every probe, every endpoint that is not reached.

Without watchers nothing is measured, and the other server is not asked for its times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from isochrone.clock import MILLISECOND, now_ns
from isochrone.protocol.timing import parse_server_timing, step_of
from isochrone.worker.remote.link import Crossing

if TYPE_CHECKING:
    from isochrone.client.answers import Outputs
    from isochrone.client.calls import InferCall

#: Of a request for readiness and its answer, both with their heads.
_PROBE_BYTES = 400
#: Of the heads of a request and its answer.
_HEAD_BYTES = 600


class LinkWatcher(Protocol):
    """Whoever watches the link of a remote model."""

    def crossed(self, model: str, crossing: Crossing) -> None:
        """A request was answered, or a probe."""
        ...

    def unreachable(self, model: str) -> None:
        """A request or a probe reached no endpoint, or its connections broke."""
        ...


class LinkReports:
    """The watchers of one remote model."""

    __slots__ = ("_model", "_watchers")

    def __init__(self, model: str) -> None:
        self._model = model
        self._watchers: tuple[LinkWatcher, ...] = ()

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def watch(self, watcher: LinkWatcher) -> None:
        if watcher not in self._watchers:
            self._watchers += (watcher,)

    def unwatch(self, watcher: LinkWatcher) -> None:
        self._watchers = tuple(each for each in self._watchers if each is not watcher)

    def answered(self, call: InferCall, outputs: Outputs, elapsed_ns: int) -> None:
        if not self._watchers:
            return
        stages = parse_server_timing(outputs.server_timing)
        there = sum(each for stage, each in stages.items() if step_of(stage) is None) if stages else None
        size = sum(len(each.data) for each in call.inputs) + sum(array.nbytes for array in outputs.values())
        self._report(
            Crossing(now_ns(), size + _HEAD_BYTES, elapsed_ns, None if there is None else round(there * MILLISECOND))
        )

    def probed(self, elapsed_ns: int) -> None:
        self._report(Crossing(now_ns(), _PROBE_BYTES, elapsed_ns, 0))

    def unreachable(self) -> None:
        for watcher in self._watchers:
            watcher.unreachable(self._model)

    def _report(self, crossing: Crossing) -> None:
        for watcher in self._watchers:
            watcher.crossed(self._model, crossing)
