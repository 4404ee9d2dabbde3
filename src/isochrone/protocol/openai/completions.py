"""POST /v1/chat/completions and /v1/completions: one request to the service per choice, one answer to the caller.

The answer is one object, or a stream of server-sent events that ends with ``data: [DONE]``. An error before the first
event has its own status; a later one is an event. If one choice fails, the call fails and the others are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from isochrone.clock import NEVER
from isochrone.errors import IsochroneError, NotFound
from isochrone.protocol.back_pressure import WaitingProducers
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER
from isochrone.protocol.headers.request_fields import request_fields
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.protocol.openai.answers import (
    InvalidParameter,
    ModelNotFound,
    error_object,
    respond_error,
    unexpected,
)
from isochrone.protocol.openai.call import Body, CompletionCall
from isochrone.protocol.openai.choice import Choice, TokenLogprobs
from isochrone.protocol.openai.model_names import pinned_model, split_name
from isochrone.protocol.openai.objects import AnswerForm, usage_of
from isochrone.protocol.openai.tensors import TextModel, check, choice_inputs, in_terms_of_call, text_model
from isochrone.protocol.parameters import PLAN_PARAMETERS, read_parameters
from isochrone.protocol.rest.answers import JSON, load_fields
from isochrone.protocol.rest.headers import timeout_header
from isochrone.protocol.rest.json_bodies import read_json
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.wire.exchange import Exchange, Head, Headers, Route

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

_EVENTS: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_DONE = b"data: [DONE]\n\n"


class CompletionRoute(Route):
    """Calls of one kind with one message head. ``read``: reads their bodies."""

    def __init__(self, service: InferenceService, head: Head, read: Callable[[Body], CompletionCall]) -> None:
        self._service = service
        self._read = read
        self._pinned = pinned_model(head)
        self._timeout_ns = timeout_header(head)
        self._load_format = head.get(ORCA_FORMAT_HEADER) or b""
        self.stages, self.trace_context = request_fields(head)[:2]

    def handle(self, exchange: Exchange) -> None:
        try:
            body: Any = read_json(exchange.body, msgspec.json.decode, object)
            if not isinstance(body, dict):
                raise InvalidParameter("", "the request's body: expected a JSON object")
            call = self._read(body)
            model = find_model(self._service, call.model, self._pinned)
            check(call, model)
            form = AnswerForm(call.model, call.is_chat)
            answer = CompletionAnswer(exchange, call, form, self._service, model, self._load_format)
            requests = [self._request(answer, call, model, choice) for choice in answer.choices]
        except IsochroneError as error:
            exchange.owner = None
            respond_error(exchange, error)
        except Exception as error:
            exchange.owner = None
            respond_error(exchange, unexpected(error))
        else:
            answer.begin(requests)

    def _request(
        self, answer: CompletionAnswer, call: CompletionCall, model: TextModel, choice: Choice
    ) -> ChoiceRequest:
        given = choice_inputs(call, model, call.prompts[choice.prompt], choice.index % call.choices)
        plan = Plan(
            model.name,
            model.version,
            tuple((name, name_of(array.dtype), array.shape) for name, array in given.inputs.items()),
            None,
            {key: value for key, value in given.parameters.items() if key not in PLAN_PARAMETERS},
            **read_parameters(given.parameters),
        )
        request = ChoiceRequest(answer, choice, self, plan, given.inputs)
        request.deadline = request.arrived + self._timeout_ns if self._timeout_ns else NEVER
        return request


def find_model(service: InferenceService, given: str, pinned: tuple[str, str] | None) -> TextModel:
    """The model of a call. Raises ``ModelNotFound``, or another error of the service."""

    def is_known(name: str) -> bool:
        try:
            service.declared_inputs(name, "")
        except NotFound:
            return False
        return True

    try:
        name, version = pinned or split_name(given, is_known)
        return text_model(service, name, version)
    except NotFound as error:
        raise ModelNotFound(f"The model '{given[:200]}' does not exist: {error}") from None


class ChoiceRequest(InferRequest):
    """The request for one choice. Its responses go to the answer that it is a part of."""

    takes_many: ClassVar[bool] = True

    __slots__ = ("_answer", "_route", "choice")

    def __init__(
        self, answer: CompletionAnswer, choice: Choice, route: CompletionRoute, plan: Plan, inputs: Tensors
    ) -> None:
        super().__init__(plan, answer.form.id, inputs, answer.exchange.arrived)
        self._answer = answer
        self._route = route
        self.choice = choice

    def exchange_of(self) -> Any:
        return self._answer.exchange

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._route.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self._route.trace_context

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._answer.emitted(self, outputs)

    def finish(self) -> None:
        self._answer.finished(self)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._answer.emitted(self, outputs)
        self._answer.finished(self)

    def fail(self, error: IsochroneError) -> None:
        self._answer.failed(error)

    @property
    def is_congested(self) -> bool:
        return self._answer.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._answer.producers.add(callback)


class CompletionAnswer:
    """One call and its choices; the owner of the exchange."""

    def __init__(
        self,
        exchange: Exchange,
        call: CompletionCall,
        form: AnswerForm,
        service: InferenceService,
        model: TextModel,
        load_format: bytes = b"",
    ) -> None:
        """``load_format``: of the load report that the caller asks for; empty: it asks for none."""
        self.exchange = exchange
        self.form = form
        self._call = call
        self._service = service
        self._model = model
        self._load_format = load_format
        #: In the order of prompts.
        self.choices = [
            Choice(index, index // call.choices, call.logprobs) for index in range(len(call.prompts) * call.choices)
        ]
        self._texts: list[list[str]] = [[] for _ in self.choices]
        self._tokens: list[list[TokenLogprobs]] = [[] for _ in self.choices]
        #: Characters sent of each choice with log probabilities.
        self._sent = [0] * len(self.choices)
        self._opened: set[int] = set()
        self._requests: list[ChoiceRequest] = []
        #: Of them, those that the service was given.
        self._submitted = 0
        self._started = self._over = False
        #: Models that wait until the caller has read earlier events.
        self.producers = WaitingProducers(exchange)
        exchange.owner = self

    def begin(self, requests: list[ChoiceRequest]) -> None:
        self._requests = requests
        for request in requests:
            if self._over:
                return  # an earlier choice has failed
            self._submitted += 1
            try:
                self._service.infer(request)
            except IsochroneError as error:
                self.failed(error)
            except Exception as error:
                self.failed(unexpected(error))

    def abandoned(self) -> None:
        self._stop()
        # The caller will not read again: waiting models must check ``cancelled`` now.
        self.producers.resume()

    @property
    def is_congested(self) -> bool:
        return self._started and self.exchange.is_congested

    def emitted(self, request: ChoiceRequest, outputs: Tensors) -> None:
        if self._over:
            return
        choice = request.choice
        try:
            piece = choice.take(outputs)
        except IsochroneError as error:
            self.failed(error)
            return
        if self.form.fingerprint is None:
            self._learn_version(request)
        self._add(choice, piece.text, piece.logprobs)

    def finished(self, request: ChoiceRequest) -> None:
        if self._over:
            return
        choice = request.choice
        self._learn_version(request)
        self._add(choice, choice.end(), ())
        if self._call.streams:
            self._open(choice)
            self._write(self.form.closing(choice))
        if all(each.is_finished for each in self.choices):
            self._end()

    def failed(self, error: IsochroneError) -> None:
        if self._over:
            return
        self._stop()
        error = in_terms_of_call(error, self._call)
        if self._started:
            self._write(error_object(error))
            self.exchange.end()
        else:
            # Of a call of which one choice was refused, the others may have run.
            respond_error(self.exchange, error if self._submitted == 1 else error.begun(), self._extras())
        self.producers.resume()

    def _extras(self) -> Headers:
        return load_fields(self._service, self._model.name, self._model.version, self._load_format)

    def _stop(self) -> None:
        self._over = True
        for request in self._requests:
            request.cancelled = True

    def _learn_version(self, request: ChoiceRequest) -> None:
        if self.form.fingerprint is None and request.served_by is not None:
            digest = self._service.model_digest(self._model.name, request.served_by.model_version)
            self.form.fingerprint = f"fp_{digest[:12]}" if digest else None

    def _add(self, choice: Choice, text: str, tokens: Sequence[TokenLogprobs]) -> None:
        if not self._call.streams:
            self._texts[choice.index].append(text)
            self._tokens[choice.index] += tokens
        elif text or tokens:
            index = choice.index
            if index not in self._opened:
                self._open(choice)
            if self._call.logprobs is not None:
                self._write(self.form.piece(choice, text, tokens, self._sent[index]))
                self._sent[index] += len(text)
                return
            if not self._started:
                self._start()
            self.exchange.write(self.form.text_event(index, text))

    def _open(self, choice: Choice) -> None:
        """Before the first text of a choice in a stream."""
        if choice.index in self._opened:
            return
        self._opened.add(choice.index)
        if self._call.is_chat:
            self._write(self.form.opening(choice))
        elif self._call.echoes:
            self._write(self.form.piece(choice, self._call.prompts[choice.prompt], None, 0))

    def _write(self, event: Any) -> None:
        if not self._started:
            self._start()
        self.exchange.write([b"data: ", msgspec.json.encode(event), b"\n\n"])

    def _start(self) -> None:
        self._started = True
        self.exchange.start(200, _EVENTS + self._extras())

    def _end(self) -> None:
        self._over = True
        usage = usage_of(self.choices)
        if self._call.streams:
            if self._call.includes_usage:
                self._write(self.form.usage_chunk(usage))
            self.exchange.write([_DONE])
            self.exchange.end()
            return
        prompts = self._call.prompts if self._call.echoes else ("",) * len(self._call.prompts)
        rows = (
            (choice, prompts[choice.prompt] + "".join(self._texts[choice.index]), self._tokens[choice.index])
            for choice in self.choices
        )
        answer = self.form.whole(rows, usage, self._call.logprobs is not None)
        self.exchange.respond(200, JSON + self._extras(), [msgspec.json.encode(answer)])
