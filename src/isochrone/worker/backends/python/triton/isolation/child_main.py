"""The process of an isolated Triton model: ``python -m isochrone.worker.backends.python.triton.isolation.child_main``.

``session`` starts it. Its main thread loads the model and runs ``execute`` for the questions of the first link; another
thread takes the notices of the second one. An exit, a crash or a hang must affect this process alone, and it must never
outlive the server.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from isochrone.errors import ConfigError, IsochroneError
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.processes.child_side import begin, import_from, pin
from isochrone.worker.backends.processes.frames import Frame, FrameReader, LinkBroken, Outbox
from isochrone.worker.backends.processes.places import Packing
from isochrone.worker.backends.processes.response_blocks import BLOCKS_LENT
from isochrone.worker.backends.processes.shared_block import SharedBlock
from isochrone.worker.backends.python.triton.isolation import messages
from isochrone.worker.backends.python.triton.isolation.child_requests import ChildRequests, outcomes_of, unsendable
from isochrone.worker.backends.python.triton.isolation.child_server import ServerOverLink
from isochrone.worker.backends.python.triton.isolation.forms import KeptForms
from isochrone.worker.backends.python.triton.isolation.messages import (
    INLINE_BYTES,
    CallResponse,
    Closed,
    Execute,
    Failed,
    Gone,
    Outcome,
    Reply,
    Returned,
    Start,
    Started,
    Taken,
    decoded,
    encoded,
)
from isochrone.worker.backends.python.triton.model import TritonModel, TritonModelContext
from isochrone.worker.backends.python.triton.samples import no_outlet

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes


class Executor:
    """Runs the requests that the worker sends."""

    def __init__(self, model: TritonModel, requests: ChildRequests, blocks: list[SharedBlock]) -> None:
        self._model = model
        self._requests = requests
        self._inputs, self._outputs = blocks[: BLOCKS_LENT + 1], blocks[BLOCKS_LENT + 1 :]
        self._forms = KeptForms()
        #: Whether the model may still use inputs in blocks.
        self._may_hold = False

    def run(self, question: Execute, payload: Bytes) -> Frame:
        packing = Packing()
        outcomes = self._outcomes(question, payload, packing)
        first, size, small = question.requests[0].number, -1, b""
        try:
            if packing.size <= INLINE_BYTES:
                small = packing.joined()
            else:
                size = packing.size
                self._outputs[question.response].write_packed(packing)
            # What the model returned may be an input, which must not be referred to any more.
            del packing
            return encoded(Returned(first, outcomes, size, self._held()), small)
        except Exception as error:
            return encoded(Returned(first, [unsendable(error)] * len(outcomes), -1, self._held()))

    def _outcomes(self, question: Execute, payload: Bytes, packing: Packing) -> list[Outcome]:
        if question.block >= 0:
            payload = self._inputs[question.block].mapped(question.size)
            self._may_hold = True
        requests = []
        for head in question.requests:
            plan, inputs = self._forms.read(head, payload)
            if question.block == BLOCKS_LENT:
                inputs = {name: array.copy() for name, array in inputs.items()}
            requests.append(self._requests.add(head, plan, inputs))
        # A reference to the block would look as if the model held it.
        del payload, inputs
        outlet_of = self._requests.outlet_of if question.has_callers else no_outlet
        return outcomes_of(self._model.execute(requests, outlet_of), packing)

    def _held(self) -> list[int]:
        if not self._may_hold:
            return []
        held = [number for number, block in enumerate(self._inputs[:-1]) if block.in_use()]
        self._may_hold = bool(held)
        return held


def _load(start: Start, server: ServerOverLink) -> TritonModel:
    pin(start.cpus)
    import_from(start.directory)
    context = TritonModelContext(
        model_name=start.model_name,
        model_version=start.model_version,
        directory=Path(start.directory),
        filename=start.filename,
        args=start.args,
        outputs=tuple(start.outputs),
        decoupled=start.decoupled,
    )
    return TritonModel(context, server)


class Notices:
    """Takes the notices of the worker, on a thread of its own."""

    def __init__(self, link: socket.socket, server: ServerOverLink) -> None:
        self._reader = FrameReader(link)
        self._server = server
        #: Set when the model is loaded.
        self.requests: ChildRequests | None = None
        threading.Thread(target=self._read, name="notices", daemon=True).start()

    def _read(self) -> None:
        try:
            while (received := self._reader.receive()) is not None:
                self._take(*received)
        except LinkBroken:
            # The worker has gone; the kernel ends this process.
            pass

    def _take(self, body: memoryview | Bytes, payload: Bytes) -> None:
        notice = decoded(messages.notices, body)
        if isinstance(notice, CallResponse):
            self._server.respond(notice, payload)
        elif isinstance(notice, Reply):
            self._server.reply(notice)
        elif self.requests is not None:
            if isinstance(notice, Gone):
                self.requests.gone(notice)
            elif isinstance(notice, Taken):
                self.requests.taken(notice)


def main(arguments: list[str]) -> int:
    parent, first, second, *blocks = map(int, arguments)
    begin(parent)
    for descriptor in (first, second, *blocks):
        os.set_inheritable(descriptor, False)
    with socket.socket(fileno=first) as link:
        try:
            return _serve(link, socket.socket(fileno=second), [SharedBlock(descriptor) for descriptor in blocks])
        except LinkBroken:
            return 1


def _serve(link: socket.socket, second: socket.socket, blocks: list[SharedBlock]) -> int:
    reader, outbox = FrameReader(link), Outbox(second)
    forks.close_in_copies(link, second)
    start, _ = _question(reader)
    if not isinstance(start, Start):
        return 1
    server = ServerOverLink(outbox)
    notices = Notices(second, server)
    try:
        model = _load(start, server)
    except IsochroneError as error:
        parts = [error.where, error.key, error.expected, error.given] if isinstance(error, ConfigError) else []
        _answer(link, encoded(Failed(str(error), parts)))
        return 1
    # As inside the worker: a coroutine shares its thread with others, and must not wait.
    requests = ChildRequests(outbox, waits_for_callers=model.decoupled and not model.is_async)
    notices.requests = requests
    executor = Executor(model, requests, blocks)
    _answer(link, encoded(Started(model.is_async)))
    while True:
        question, payload = _question(reader)
        if not isinstance(question, Execute):
            break
        _answer(link, executor.run(question, payload))
        del question, payload
    try:
        model.close()
    except IsochroneError as error:
        _answer(link, encoded(Failed(str(error))))
        return 1
    _answer(link, encoded(Closed()))
    return 0


def _answer(link: socket.socket, parts: Frame) -> None:
    """Only the main thread sends answers, one at a time."""
    try:
        for part in parts:
            link.sendall(part)
    except OSError:
        # Nobody reads it any more; the next read finds out why.
        pass


def _question(reader: FrameReader) -> tuple[messages.Question, Bytes]:
    received = reader.receive()
    if received is None:  # only without waiting
        raise LinkBroken("nothing received")
    return decoded(messages.questions, received[0]), received[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
