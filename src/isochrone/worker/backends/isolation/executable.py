"""The executable of a model in a process of its own.

``load`` of a backend makes it if the configuration has ``isolation: "process"``, or the model is of a kind that needs
it. Tensors pass through shared memory, with one copy each way: the server copies inputs into a block that the child
reads in place, and the child copies outputs into one of a few blocks that the server sends from in place. A child that
dies or is killed fails only its own call. The ``keeper`` starts a new one, or the next call does: immediately after the
first death, then after a growing pause.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed, Unavailable, Unsupported
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.isolation.child import Child, ChildGone, ChildTimedOut
from isochrone.worker.backends.isolation.keeper import Keeper
from isochrone.worker.backends.isolation.messages import (
    Answer,
    Done,
    Failed,
    Infer,
    Next,
    Open,
    Question,
    Result,
    Start,
    Stop,
)
from isochrone.worker.backends.processes.child import Spawner
from isochrone.worker.backends.processes.places import BadPlace
from isochrone.worker.backends.processes.response_blocks import ResponseBlocks
from isochrone.worker.backends.processes.restarts import Restarts
from isochrone.worker.backends.processes.shared_block import SharedBlock

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.backends.interface import LoadContext

#: After a restart that failed: the pause, if the deaths before it do not give a longer one.
_RETRY_MILLISECONDS = 100
#: The errors of a model that keep their kind, by code.
_KINDS = {kind.code: kind for kind in (InvalidArgument, Unsupported, Unavailable)}


class IsolatedExecutable(Executable):
    """One child process at a time, started again when it dies."""

    inline_allowed = False
    fresh_outputs = True
    ends_long_runs = True

    def __init__(self, context: LoadContext, loader: str, model: msgspec.Struct, decoupled: bool = False) -> None:
        """``loader`` and ``model``: the module that loads the model in the child, and what that reads (``Start``)."""
        self.decoupled = decoupled
        self._restarts = Restarts(context.model_name, context.model_version)
        described = msgspec.Raw(msgspec.msgpack.encode(model))
        self._start_message = Start(loader, described, self._restarts.label, list(context.cpus))
        self._timeout_ms = parameters.integer(context, "execution_timeout_ms", 0) or None
        self._child: Child | None = None
        #: Held by the thread that uses the child: that of a call, or the keeper's. The garbage collector may close an
        #: older stream inside of a call.
        self._lock = threading.RLock()
        self._closing = False
        #: Whether the child has loaded the model.
        self._is_available = False
        self._keeper: Keeper | None = None
        #: Number of the open stream; an older generator must not request its responses.
        self._stream_number = 0
        self._request = SharedBlock.create("isochrone-request")
        self._responses = ResponseBlocks()
        self._spawner = Spawner(context.model_name, context.confinement)
        try:
            child = self._start()
            self._keeper = Keeper(context.model_name, self._replace)
            self._keeper.watch(child.death)
        except BaseException:
            self.close()
            raise
        self._restarts.has_served = True

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if there is none."""
        return self._child.pid if self._child is not None else None

    def is_available(self) -> bool:
        return self._is_available

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        if self.decoupled:
            raise Unsupported("a decoupled model answers through a stream of responses")
        with self._lock:
            child = self._started()
            places, size = self._request.write(inputs)
            response = self._responses.free()
            answer = self._ask(child, Infer(places, size, None if outputs is None else list(outputs), response))
            return self._received(answer, response)

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors]:
        with self._lock:
            child = self._started()
            self._stream_number += 1
            number = self._stream_number
            places, size = self._request.write(inputs)
            self._ask(child, Open(places, size, dict(parameters)))
        over = False
        try:
            while number == self._stream_number:
                over = True  # unless a response arrives: after a failure the child has no open stream
                with self._lock:
                    response = self._responses.free()
                    answer = self._ask(child, Next(response))
                    results = None if isinstance(answer, Done) else self._received(answer, response)
                if results is None:
                    return
                over = False
                yield results
        finally:
            if not over and number == self._stream_number:
                with self._lock:
                    if self._child is child:
                        self._ask(child, Stop())

    def close(self) -> None:
        self._closing = True
        if self._keeper is not None:
            # No call runs: the lock is the keeper's, which may be starting a child.
            if not self._lock.acquire(blocking=False):
                if (child := self._child) is not None:
                    child.kill()
            else:
                self._lock.release()
            self._keeper.close()
            self._keeper = None
        if self._child is not None:
            self._child.close()
            self._child = None
        self._spawner.close()
        for block in (self._request, *self._responses.blocks):
            block.close()

    def _started(self) -> Child:
        """The child; a new one if it has ended. Raises if it is too early for one."""
        if self._child is not None:
            if self._child.alive():
                return self._child
            self._lost(f"between two calls {self._child.cause_of_death()}")
        self._restarts.check()
        child = self._start()
        if self._keeper is not None:
            self._keeper.watch(child.death)
        self._restarts.restarted(child.pid)
        return child

    def _replace(self) -> int | None:
        """Starts another child if this one has ended; see ``Keeper``."""
        with self._lock:
            if self._closing:
                return None
            try:
                self._started()
            except Exception as error:
                if isinstance(error, Unavailable) and error.retry_after:  # it is too early
                    return int(1000 * error.retry_after) + 1
                if not self._closing:
                    self._restarts.not_restarted(error)
                return _RETRY_MILLISECONDS
            return None

    def _start(self) -> Child:
        """Starts a child."""
        try:
            child = self._child = Child(self._spawner, self._request, self._responses.blocks)
        except OSError as error:
            raise ModelFailed(f"{self._restarts.label}: its process cannot be started: {error}") from error
        if self._closing:
            raise self._lost("load: the model is being unloaded")
        try:
            answer = child.ask(self._start_message, None)
        except ChildGone as gone:
            raise self._lost(f"load: {gone}") from None
        if isinstance(answer, Failed):
            self._lost("load failed")
            raise _error_of(answer)
        if isinstance(answer, Done):
            self.captured_graphs = answer.captured_graphs
        self._is_available = True
        return child

    def _ask(self, child: Child, question: Question) -> Answer:
        if self._child is not child:
            raise ModelFailed(f"{self._restarts.label}: {self._restarts.last_loss}")
        try:
            answer = child.ask(question, self._timeout_ms)
        except ChildGone as gone:
            raise self._lost(f"infer: {gone}") from None
        except ChildTimedOut:
            raise self._lost(
                f"infer took longer than execution_timeout_ms = {self._timeout_ms}, its process was killed"
            ) from None
        if isinstance(answer, Failed) and answer.lost:
            lost = self._lost(f"infer: {answer.lost}")
            raise _noted(lost, answer)
        self._restarts.answered()
        if isinstance(answer, Failed):
            raise _noted(_error_of(answer), answer)
        return answer

    def _lost(self, how: str) -> ModelFailed:
        """Records the loss of the child and when the next may start."""
        self._is_available = False
        if self._child is not None:
            self._child.end()
            self._child = None
        return self._restarts.lost(how)

    def _received(self, answer: Answer, response: int) -> Tensors:
        if not isinstance(answer, Result):
            raise self._lost(f"infer: its process answered {type(answer).__name__} and was killed")
        copy = self._responses.is_copied(response, answer.size)
        try:
            return self._responses.blocks[response].read(answer.tensors, answer.size, copy=copy)
        except BadPlace as error:
            raise self._lost(f"infer: its process sent an invalid answer and was killed: {error}") from None


def _error_of(answer: Failed) -> IsochroneError:
    """The error that the child raised; ``ModelFailed`` for a kind of which the server cannot make one."""
    if len(answer.config) == 4:
        return ConfigError(*answer.config)
    return _KINDS.get(answer.code, ModelFailed)(answer.message)


def _noted(error: IsochroneError, answer: Failed) -> IsochroneError:
    if answer.traceback:
        error.add_note(answer.traceback)
    return error
