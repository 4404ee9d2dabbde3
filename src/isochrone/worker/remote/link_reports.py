"""What a remote model tells those who watch its link: every answer, every probe, every endpoint that is not reached.

Without watchers nothing is measured, and the other server is not asked for its times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from isochrone.clock import MILLISECOND, now_ns
from isochrone.protocol.headers.timing import parse_server_timing, step_of
from isochrone.worker.remote.link import PROBE_BYTES, Crossing

if TYPE_CHECKING:
    from isochrone.client.answers import Outputs
    from isochrone.client.calls import InferCall

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

    __slots__ = ("_is_connected", "_model", "_watchers")

    def __init__(self, model: str) -> None:
        self._model = model
        self._watchers: tuple[LinkWatcher, ...] = ()
        #: Before, a probe has the time of the connection, which says nothing of the link.
        self._is_connected = False

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
        there_ns = None if there is None or outputs.unsent_ns is None else round(there * MILLISECOND)
        sent = outputs.sent_bytes or sum(len(each.data) for each in call.inputs)
        received = outputs.received_bytes or sum(array.nbytes for array in outputs.values())
        size = sent + received + _HEAD_BYTES
        self._report(Crossing(now_ns(), size, elapsed_ns, there_ns, outputs.unsent_ns or 0))

    def probed(self, elapsed_ns: int) -> None:
        self._report(Crossing(now_ns(), PROBE_BYTES, elapsed_ns, 0 if self._is_connected else None))
        self._is_connected = True

    def unreachable(self) -> None:
        self._is_connected = False
        for watcher in self._watchers:
            watcher.unreachable(self._model)

    def _report(self, crossing: Crossing) -> None:
        for watcher in self._watchers:
            watcher.crossed(self._model, crossing)
