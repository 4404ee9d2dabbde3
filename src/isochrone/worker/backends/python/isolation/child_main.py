"""The process of an isolated Python model: ``python -m isochrone.worker.backends.python.isolation.child_main``.

``child`` starts it. It loads one model, answers one question at a time over its socket, and reads and writes tensors in
shared blocks. An exit, a crash or a hang must affect this process alone, and it must never outlive the server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.errors import ConfigError, IsochroneError, ModelFailed
from isochrone.worker.backends.python import forks
from isochrone.worker.backends.python.isolation import messages
from isochrone.worker.backends.python.isolation.messages import (
    Answer,
    Close,
    Done,
    Failed,
    Infer,
    Next,
    Open,
    Result,
    Start,
)
from isochrone.worker.backends.python.model import ModelContext, UserModel
from isochrone.worker.backends.python.processes.child_side import begin, settle_in, traceback_of
from isochrone.worker.backends.python.processes.places import Place
from isochrone.worker.backends.python.processes.shared_block import SharedBlock

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


class Session:
    """One loaded model and the request it may be streaming."""

    def __init__(self, model: UserModel, request: SharedBlock, responses: list[SharedBlock]) -> None:
        self._model = model
        self._request = request
        self._responses = responses
        self._stream: Iterator[Tensors] | None = None

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
            return Failed(str(error), traceback=traceback_of(error))
        except BaseException as error:  # outside user code, for example a shared block that cannot grow
            return Failed(str(self._model.failure("answering", error)))

    def _infer(self, question: Infer) -> Answer:
        inputs = self._inputs(question.tensors, question.size)
        try:
            results = self._model.infer(inputs)
        except BaseException as error:
            raise self._model.failure("infer", error) from error
        wanted = None if question.outputs is None else tuple(question.outputs)
        return Result(*self._responses[question.response].write(self._model.results(results, wanted)))

    def _inputs(self, places: list[Place], size: int) -> Tensors:
        inputs = self._request.read(places, size, copy=False)
        for array in inputs.values():
            array.flags.writeable = False
        return inputs

    def _opened(self, question: Open) -> Iterator[Tensors]:
        responses = self._model.stream(self._inputs(question.tensors, question.size), question.parameters)
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
        self._model.close()


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


def _load(start: Start) -> UserModel:
    settle_in(start.cpus, start.directory)
    context = ModelContext(
        model_name=start.model_name,
        model_version=start.model_version,
        directory=Path(start.directory),
        config=start.config,
        parameters=start.parameters,
        instance=start.instance,
    )
    return UserModel(context, start.filename, start.outputs, start.decoupled)


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
            session = Session(_load(start), SharedBlock(request), [SharedBlock(fd) for fd in responses])
        except IsochroneError as error:
            parts = [error.where, error.key, error.expected, error.given] if isinstance(error, ConfigError) else []
            messages.send(link, Failed(str(error), parts))
            return 1
        answer: Answer = Done()
        while True:
            try:
                messages.send(link, answer)
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
