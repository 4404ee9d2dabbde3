"""The executable of a Triton model in a process of its own.

``backend.load`` makes it if the configuration has ``isolation: "process"``. Small inputs and outputs are in the
messages; large ones pass through shared memory, with one copy each way. A process that dies or is killed fails only the
requests in it: the next call starts a new one, immediately after the first death, then after a growing pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import Executable, LoadContext
from isochrone.worker.backends.processes.child import Spawner
from isochrone.worker.backends.processes.frames import LinkBroken
from isochrone.worker.backends.processes.places import BadPlace, Packing
from isochrone.worker.backends.processes.response_blocks import BLOCKS_LENT, ResponseBlocks
from isochrone.worker.backends.processes.restarts import Restarts
from isochrone.worker.backends.processes.shared_block import SharedBlock
from isochrone.worker.backends.python.triton.isolation.messages import (
    INLINE_BYTES,
    Execute,
    Failed,
    Returned,
    Start,
    encoded,
)
from isochrone.worker.backends.python.triton.isolation.session import Session, SessionOver, answer_of
from isochrone.worker.backends.python.triton.samples import no_outlet, sample_outputs, sample_request

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.secure.sandbox.confinement import Confinement
    from isochrone.worker.backends.interface import Answer, PostingOutletOf, TakeAnswers
    from isochrone.worker.backends.processes.frames import Frame
    from isochrone.worker.backends.processes.places import Bytes
    from isochrone.worker.backends.python.triton.isolation.flights import Flight
    from isochrone.worker.backends.python.triton.isolation.forms import SentForms
    from isochrone.worker.backends.python.triton.model import TritonModelContext
    from isochrone.worker.backends.python.triton.server import Server

#: Larger inputs are copied by the instance's thread, not by the event loop's.
_LOOP_BYTES = 64 * 1024


class IsolatedTritonExecutable(Executable):
    """One process at a time, started again when it dies."""

    takes_requests = True
    inline_allowed = False
    warms_up = False
    fresh_outputs = True
    ends_long_runs = True

    def __init__(
        self,
        context: TritonModelContext,
        server: Server,
        cpus: tuple[int, ...] = (),
        timeout_ms: int = 0,
        confinement: Confinement | None = None,
    ) -> None:
        self.decoupled = context.decoupled
        self.begins_on_loop = not context.decoupled
        self._server = server
        self._timeout_ms = timeout_ms
        self._restarts = Restarts(context.model_name, context.model_version)
        self._start_message = Start(
            model_name=context.model_name,
            model_version=context.model_version,
            directory=str(context.directory),
            filename=context.filename,
            args=dict(context.args),
            outputs=list(context.outputs),
            decoupled=context.decoupled,
            cpus=list(cpus),
        )
        self._requests = [SharedBlock.create(f"isochrone-request-{n}") for n in range(BLOCKS_LENT + 1)]
        self._responses = ResponseBlocks()
        #: Request blocks that the process still uses.
        self._held: set[int] = set()
        self._session: Session | None = None
        self._spawner = Spawner(context.model_name, confinement)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._restarts.has_served = True

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if there is none."""
        return self._session.pid if self._session is not None and self._session.error is None else None

    def execute_requests(self, requests: Sequence[InferRequest]) -> list[Answer]:
        return self._run(requests, self.outlet_of, has_callers=True)

    def begin_requests(self, requests: Sequence[InferRequest], done: TakeAnswers) -> bool:
        session = self._session
        if session is None:
            return False
        if session.is_over or not _are_small(requests) or (response := self._responses.free()) == BLOCKS_LENT:
            session.leave_loop()
            return False
        now = now_ns()
        flights = [session.flights.add(request, self.outlet_of, now) for request in requests]
        try:
            question = self._question(session.forms, flights, response, has_callers=True)
        except Exception:
            # The thread finds the same, and answers.
            for flight in flights:
                session.flights.remove(flight)
            session.leave_loop()
            return False
        session.begin(question, _BegunRequests(self, session, flights, response, done), now)
        return True

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """One run without a caller: a sample of model_warmup."""
        name = self._start_message.model_name
        (answer,) = self._run((sample_request(name, inputs, outputs),), no_outlet, has_callers=False)
        return sample_outputs(name, answer)

    def close(self) -> None:
        try:
            if self._session is not None:
                session, self._session = self._session, None
                session.close()
        finally:
            self._spawner.close()
            for block in (*self._requests, *self._responses.blocks):
                block.close()

    def _started(self) -> Session:
        if self._session is not None:
            if not self._session.is_over:
                return self._session
            self._session.wait_for_end()
            self._discard()
        self._restarts.check()
        session = self._start()
        self._restarts.restarted(session.pid)
        return session

    def _discard(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.release()

    def _start(self) -> Session:
        blocks = [*self._requests, *self._responses.blocks]
        start, lost = self._start_message, self._restarts.lost
        try:
            session = Session(self._spawner, start, blocks, self._server, lost, self._timeout_ms)
        except OSError as error:
            raise ModelFailed(f"{self._restarts.label}: its process cannot be started: {error}") from error
        self._session = session
        self._held = set()
        try:
            answer = session.start()
        except SessionOver as over:
            self._discard()
            raise over.error from None
        if isinstance(answer, Failed):
            self._discard()
            self._restarts.lost("load failed")
            raise ConfigError(*answer.config) if len(answer.config) == 4 else ModelFailed(answer.message)
        self.is_async = answer.is_async
        return session

    def _run(self, requests: Sequence[InferRequest], outlet_of: PostingOutletOf, *, has_callers: bool) -> list[Answer]:
        try:
            session = self._started()
        except IsochroneError as error:
            return [error] * len(requests)
        now = now_ns()
        flights = [session.flights.add(request, outlet_of, now) for request in requests]
        response = self._responses.free()
        try:
            if self.decoupled and has_callers:
                for flight in flights:
                    flight.made_outlet()
            question = self._question(session.forms, flights, response, has_callers=has_callers)
        except Exception as error:
            failure = InvalidArgument(f"{self._restarts.label}: the requests cannot be passed to its process: {error}")
            return self.failed(session, flights, failure)
        try:
            returned, payload = session.execute(question, flights)
            try:
                return self.answers(session, flights, returned, payload, response, has_callers=has_callers)
            except LinkBroken as error:
                raise session.broken(str(error)) from None
        except SessionOver as over:
            return self.failed(session, flights, over.error)

    def _question(self, forms: SentForms, flights: list[Flight], response: int, *, has_callers: bool) -> Frame:
        """Raises if the process cannot be given a request. Otherwise the question must be asked."""
        packing = Packing()
        try:
            heads = [forms.head(flight.number, flight.request, packing) for flight in flights]
            if packing.size <= INLINE_BYTES:
                return encoded(Execute(heads, response, -1, 0, has_callers), packing)
            number = next((number for number in range(BLOCKS_LENT) if number not in self._held), BLOCKS_LENT)
            self._requests[number].write_packed(packing)
            return encoded(Execute(heads, response, number, packing.size, has_callers))
        except BaseException:
            forms.forget()
            raise

    def answers(
        self,
        session: Session,
        flights: list[Flight],
        returned: Returned,
        payload: Bytes,
        response: int,
        *,
        has_callers: bool = True,
    ) -> list[Answer]:
        """The answers to a question; raises ``LinkBroken`` if they are invalid. It does not wait."""
        if returned.first != flights[0].number:
            raise LinkBroken(f"it answered request {returned.first} instead of {flights[0].number}")
        if returned.held or self._held:
            self._held = set(returned.held)
        size, copy = returned.size, False
        if size >= 0:
            copy = self._responses.is_copied(response, size)
            try:
                payload = self._responses.blocks[response].mapped(size)[:size]
            except BadPlace as error:
                raise LinkBroken(f"an invalid answer: {error}") from error
        if len(returned.outcomes) != len(flights):
            raise LinkBroken(f"{len(returned.outcomes)} answers to {len(flights)} requests")
        answers = [answer_of(outcome, payload, copy=copy) for outcome in returned.outcomes]
        self._settle(session, flights, answers, has_callers=has_callers)
        self._restarts.answered()
        return answers

    @staticmethod
    def _settle(session: Session, flights: list[Flight], answers: list[Answer], *, has_callers: bool) -> None:
        """``execute`` has returned these answers: what it has not answered is left to response senders."""
        now = now_ns()
        for flight, answer in zip(flights, answers, strict=True):
            if answer is None and has_callers:
                session.left_to_sender(flight, now)
            else:
                session.flights.remove(flight)
        if session.flights:
            session.look_after_rest()

    @staticmethod
    def failed(session: Session, flights: list[Flight], error: IsochroneError) -> list[Answer]:
        """The answers of requests that did not run to their end. What has an outlet is answered there."""
        answers: list[Answer] = []
        for flight in flights:
            session.flights.remove(flight)
            if flight.outlet is None:
                answers.append(error)
            else:
                flight.outlet.send(error, True)
                answers.append(None)
        return answers


class _BegunRequests:
    """Requests that the event loop's thread has sent to the process."""

    __slots__ = ("_done", "_executable", "_flights", "_response", "_session")

    def __init__(
        self,
        executable: IsolatedTritonExecutable,
        session: Session,
        flights: list[Flight],
        response: int,
        done: TakeAnswers,
    ) -> None:
        self._executable = executable
        self._session = session
        self._flights = flights
        self._response = response
        self._done = done

    def returned(self, answer: Returned, payload: Bytes) -> None:
        try:
            answers = self._executable.answers(self._session, self._flights, answer, payload, self._response)
        except LinkBroken:
            raise
        except Exception as error:  # such as an answer that cannot be mapped
            failure = ModelFailed(f"the answer of its process cannot be read: {error}")
            answers = self._executable.failed(self._session, self._flights, failure)
        self._done(answers)

    def lost(self, error: IsochroneError) -> None:
        self._done(self._executable.failed(self._session, self._flights, error))


def _are_small(requests: Sequence[InferRequest]) -> bool:
    """Whether the loop's thread may copy the inputs."""
    size = 0
    for request in requests:
        for array in request.inputs.values():
            size += array.nbytes
    return size <= _LOOP_BYTES


def load(context: LoadContext, model_context: TritonModelContext) -> Executable:
    timeout_ms = parameters.integer(context, "execution_timeout_ms", 0)
    return IsolatedTritonExecutable(model_context, context.server, context.cpus, timeout_ms, context.confinement)
