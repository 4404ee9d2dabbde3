"""Requests of HTTP/1.1 as bytes: inference with binary tensors, generate_stream, and OpenAI's API. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from isochrone.bench.workload.mix import Kind
from isochrone.client.address import Address
from isochrone.client.calls import InferCall
from isochrone.client.http import codec
from isochrone.client.http.requests import request_head
from isochrone.protocol.openai.paths import CHAT, COMPLETIONS

_encode = msgspec.json.Encoder().encode


class AnswerForm(Enum):
    """How an answer is read."""

    WHOLE = "whole"
    EVENTS = "events"
    OPENAI_EVENTS = "OpenAI's events"


class HttpRequest(NamedTuple):
    #: Head and body: one write.
    data: bytes
    form: AnswerForm


def infer_request(call: InferCall, kind: Kind, address: Address) -> HttpRequest:
    body, json_length = codec.encode_infer(call)
    headers = codec.infer_headers(call, json_length, _seconds(kind))
    path = codec.model_path(call.model, call.version, "/infer")
    return HttpRequest(_message(path, address, headers, b"".join(body)), AnswerForm.WHOLE)


def generate_request(
    fields: Mapping[str, Any], kind: Kind, address: Address, headers: Mapping[str, str]
) -> HttpRequest:
    """An answer as a stream of events, from a model that generates text."""
    path = codec.model_path(kind.model, kind.version, "/generate_stream")
    limits = {"priority": kind.priority} if kind.priority else {}
    body = _encode({**fields, **limits})
    return HttpRequest(_message(path, address, _with_deadline(headers, kind), body), AnswerForm.EVENTS)


def openai_request(kind: Kind, address: Address, headers: Mapping[str, str]) -> HttpRequest:
    fields: dict[str, Any] = {"model": f"{kind.model}@{kind.version}" if kind.version else kind.model}
    if kind.chat:
        fields["messages"] = [{"role": "user", "content": kind.prompt}]
    else:
        fields["prompt"] = kind.prompt
    fields["max_tokens"] = kind.max_tokens
    if kind.stream:
        fields["stream"] = True
    if kind.priority:
        fields["priority"] = kind.priority
    fields.update(kind.parameters)
    body = _encode(fields)
    form = AnswerForm.OPENAI_EVENTS if kind.stream else AnswerForm.WHOLE
    return HttpRequest(_message(CHAT if kind.chat else COMPLETIONS, address, _with_deadline(headers, kind), body), form)


def _message(path: str, address: Address, headers: Mapping[str, str], body: bytes) -> bytes:
    return request_head("POST", path, address, headers, len(body)) + body


def _with_deadline(headers: Mapping[str, str], kind: Kind) -> dict[str, str]:
    fields = {"content-type": "application/json", **headers}
    if kind.deadline_ms is not None:
        fields["x-request-timeout-ms"] = f"{kind.deadline_ms:.3f}"
    return fields


def _seconds(kind: Kind) -> float | None:
    return None if kind.deadline_ms is None else kind.deadline_ms / 1000
