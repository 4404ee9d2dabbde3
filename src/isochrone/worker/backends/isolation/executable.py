"""The executable of a model in a process of its own.

``load`` of a backend makes it if the configuration has ``isolation: "process"``, or the model is of a kind that needs
it. Tensors pass through shared memory, with one copy each way: the server copies inputs into a block that the child
reads in place, and the child copies outputs into one of a few blocks that the server sends from in place. A child that
dies or is killed fails only its own call: the next call starts a new one, immediately after the first death, then after
a growing pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed, Unavailable, Unsupported
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.isolation.child import Child, ChildGone, ChildTimedOut
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
        #: Number of the open stream; an older generator must not request its responses.
        self._stream_number = 0
        self._request = SharedBlock.create("isochrone-request")
        self._responses = ResponseBlocks()
        self._spawner = Spawner(context.model_name)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._restarts.has_served = True

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if there is none."""
        return self._child.pid if self._child is not None else None

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        if self.decoupled:
            raise Unsupported("a decoupled model answers through a stream of responses")
        self._ensure_started()
        places, size = self._request.write(inputs)
        response = self._responses.free()
        answer = self._ask(Infer(places, size, None if outputs is None else list(outputs), response))
        return self._received(answer, response)

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors]:
        self._ensure_started()
        self._stream_number += 1
        number = self._stream_number
        places, size = self._request.write(inputs)
        self._ask(Open(places, size, dict(parameters)))
        over = False
        try:
            while number == self._stream_number:
                response = self._responses.free()
                over = True  # unless a response arrives: after a failure the child has no open stream
                answer = self._ask(Next(response))
                if isinstance(answer, Done):
                    return
                over = False
                yield self._received(answer, response)
        finally:
            if not over and number == self._stream_number and self._child is not None:
                self._ask(Stop())

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        self._spawner.close()
        for block in (self._request, *self._responses.blocks):
            block.close()

    def _ensure_started(self) -> None:
        if self._child is not None:
            if self._child.alive():
                return
            self._lost("its process ended between two calls")
        self._restarts.check()
        self._restarts.restarted(self._start())

    def _start(self) -> int:
        """Starts a child; returns its process id."""
        try:
            self._child = Child(self._spawner, self._request, self._responses.blocks)
        except OSError as error:
            raise ModelFailed(f"{self._restarts.label}: its process cannot be started: {error}") from error
        try:
            answer = self._child.ask(self._start_message, None)
        except ChildGone as gone:
            raise self._lost(f"load: {gone}") from None
        if isinstance(answer, Failed):
            self._lost("load failed")
            raise _error_of(answer)
        if isinstance(answer, Done):
            self.captured_graphs = answer.captured_graphs
        return self._child.pid

    def _ask(self, question: Question) -> Answer:
        if self._child is None:
            raise ModelFailed(f"{self._restarts.label}: {self._restarts.last_loss}")
        try:
            answer = self._child.ask(question, self._timeout_ms)
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
