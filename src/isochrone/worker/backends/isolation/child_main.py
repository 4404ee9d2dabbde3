"""The process of an isolated model: ``python -m isochrone.worker.backends.isolation.child_main``.

``child`` starts it. It loads one model by the function that the first message names, answers one question at a time
over its socket, and reads and writes tensors in shared blocks. An exit, a crash or a hang must affect this process
alone, and it must never outlive the server.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from isochrone.errors import ConfigError, IsochroneError, ModelFailed
from isochrone.worker.backends.interface import Executable, InstanceLost
from isochrone.worker.backends.isolation import messages
from isochrone.worker.backends.isolation.messages import Answer, Close, Done, Failed, Infer, Next, Open, Result, Start
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.processes.child_side import begin, pin, traceback_of
from isochrone.worker.backends.processes.places import Place
from isochrone.worker.backends.processes.shared_block import SharedBlock

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

# Of an exception that is not the model's: gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST_MESSAGE = 2000


class Session:
    """One loaded model and the request it may be streaming."""

    def __init__(self, label: str, executable: Executable, request: SharedBlock, responses: list[SharedBlock]) -> None:
        self._label = label
        self._executable = executable
        self._request = request
        self._responses = responses
        self._stream: Iterator[Tensors] | None = None
        self._generation = forks.generation

    def answer(self, question: messages.Question) -> Answer:
        try:
            if isinstance(question, Infer):
                return self._infer(question)
            if isinstance(question, Open):
                self._stop()
                self._stream = self._opened(question)
                return Done()
            if isinstance(question, Next):
                return self._next(question.response)
            self._stop()
            return Done()
        except IsochroneError as error:
            return failed(error)
        except BaseException as error:  # outside of the model, for example a shared block that cannot grow
            forks.end_if_copy(self._generation, error)
            failure = ModelFailed(f"{self._label}: answering raised {_described(error)}")
            failure.__cause__ = error
            return failed(failure)

    def _infer(self, question: Infer) -> Answer:
        inputs = self._inputs(question.tensors, question.size)
        requested = None if question.outputs is None else tuple(question.outputs)
        return Result(*self._responses[question.response].write(self._executable.execute(inputs, requested)))

    def _inputs(self, places: list[Place], size: int) -> Tensors:
        inputs = self._request.read(places, size, copy=False)
        for array in inputs.values():
            array.flags.writeable = False
        return inputs

    def _opened(self, question: Open) -> Iterator[Tensors]:
        responses = self._executable.stream(self._inputs(question.tensors, question.size), question.parameters)
        return _driven(responses) if isinstance(responses, AsyncIterator) else responses

    def _next(self, response: int) -> Answer:
        if self._stream is None:
            return Done()
        try:
            results = next(self._stream, None)
        except BaseException:
            self._stream = None
            raise
        if results is None:
            self._stream = None
            return Done()
        return Result(*self._responses[response].write(results))

    def _stop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._stop()
        self._executable.close()


def _driven(responses: AsyncIterator[Tensors]) -> Iterator[Tensors]:
    """Runs an async model on an event loop of its own."""
    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    yield runner.run(_following(responses))
                except StopAsyncIteration:
                    return
        finally:
            runner.run(responses.aclose())  # type: ignore[attr-defined]


async def _following(responses: AsyncIterator[Tensors]) -> Tensors:
    return await anext(responses)


def failed(error: IsochroneError) -> Failed:
    parts = [error.where, error.key, error.expected, error.given] if isinstance(error, ConfigError) else []
    lost = f"{error.ending}: {error.reason}" if isinstance(error, InstanceLost) else ""
    return Failed(str(error), parts, traceback_of(error), error.code, lost)


def _described(error: BaseException) -> str:
    said = str(error)[:_LONGEST_MESSAGE]
    return type(error).__name__ + (f": {said}" if said else "")


def _report_loss(link: socket.socket, error: InstanceLost) -> None:
    """Sent without a question, unless one arrives now: then it is the answer."""
    try:
        messages.send(link, failed(error))
    except messages.Disconnected:
        pass


def _load(start: Start) -> Executable:
    generation = forks.generation
    try:
        pin(start.cpus)
        return cast(Executable, importlib.import_module(start.loader).load_in_child(start.model))
    except IsochroneError:
        raise
    except Exception as error:
        forks.end_if_copy(generation, error)
        raise ModelFailed(f"{start.label}: load raised {_described(error)}") from error


def main(arguments: list[str]) -> int:
    parent, link_descriptor, request, *responses = map(int, arguments)
    begin(parent)
    for descriptor in (link_descriptor, request, *responses):
        os.set_inheritable(descriptor, False)
    with socket.socket(fileno=link_descriptor) as link:
        forks.close_in_copies(link)
        start = messages.receive_question(link)
        if not isinstance(start, Start):
            return 1
        try:
            blocks = [SharedBlock(descriptor) for descriptor in responses]
            executable = _load(start)
            session = Session(start.label, executable, SharedBlock(request), blocks)
            executable.report_loss = partial(_report_loss, link)
        except IsochroneError as error:
            messages.send(link, failed(error))
            return 1
        answer: Answer = Done(executable.captured_graphs)
        while True:
            try:
                messages.send(link, answer)
                if isinstance(answer, Failed) and answer.lost:
                    # Nothing is freed: calls of a lost device or rank fail, or wait for ever.
                    os._exit(1)
                question = messages.receive_question(link)
            except messages.Disconnected:
                return 1
            if isinstance(question, Close):
                break
            answer = session.answer(question)
        try:
            session.close()
        except ModelFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
