"""The servers of a run. A server that uses CPU while idle, as Ray's daemons do, stops while another one is measured."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from bench.worker.peers import Peer, bentoml, grpc_aio, isochrone_worker, litserve, mlserver, ray_serve, triton

Start = Callable[[], AbstractContextManager[Peer]]
#: Share of one core an idle server may use and still keep running beside others' measurements.
QUIET_SHARE = 0.01


def starters(onnx_files: Mapping[str, Path]) -> dict[str, Start]:
    """Name → how it is started. Ours first: every ratio is to it."""
    return {
        "isochrone": lambda: isochrone_worker.start(onnx_files),
        "triton": lambda: triton.start(onnx_files),
        "grpc_aio": grpc_aio.start,
        "mlserver": mlserver.start,
        "litserve": litserve.start,
        "bentoml": bentoml.start,
        "ray_serve": ray_serve.start,
    }


class Stage:
    """The servers that run now. A server that died is restarted when it is needed next."""

    def __init__(self, start: Mapping[str, Start]) -> None:
        self._start = start
        self._running: dict[str, tuple[ExitStack, Peer]] = {}

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.stop(name)

    def peer(self, name: str) -> Peer:
        """The server, started if it does not run; raises PeerUnavailable with the reason."""
        if name in self._running:
            peer = self._running[name][1]
            if peer.alive():
                return peer
            self.stop(name)
        with ExitStack() as stack:
            peer = stack.enter_context(self._start[name]())
            self._running[name] = (stack.pop_all(), peer)
        return peer

    def stop(self, name: str) -> None:
        """Ends it and everything it started."""
        stack, _ = self._running.pop(name)
        stack.close()


def idle_share(peer: Peer, seconds: float = 1.0) -> float:
    """Share of a core that the server uses without requests."""
    before = peer.cpu_seconds()
    time.sleep(seconds)
    return (peer.cpu_seconds() - before) / seconds
