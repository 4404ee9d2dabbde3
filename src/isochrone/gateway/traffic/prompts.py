"""What a gateway reads of requests to models that generate text: how the prompt begins, and OpenAI's routing fields.

Prompts are compared as the caller wrote them in JSON: prompts that begin alike do so there, too. Only the named members
are decoded. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from isochrone.errors import InvalidArgument, PayloadTooLarge
from isochrone.wire.exchange import Buffer

#: Bytes of a prompt that are kept.
_MOST = 64 * 1024
#: A generate request up to this size is read for its prompt, which takes up to 0.3 ms.
_READ_WHOLE = 256 * 1024
#: The limit of workers for JSON.
_MAX_BYTES = 16 * 1024 * 1024
_NONE = msgspec.Raw(b"")


class _Generate(msgspec.Struct):
    text_input: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE


class _OpenAI(msgspec.Struct):
    model: Any = None
    stream: Any = None
    priority: Any = None
    prompt: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE


_generate = msgspec.json.Decoder(_Generate)
_openai = msgspec.json.Decoder(_OpenAI)


class OpenAIFields(NamedTuple):
    """What decides where a call under ``/v1`` goes."""

    #: As the caller wrote it.
    model: str
    streams: bool
    #: 0: not given.
    priority: int
    #: How the prompt or the list of messages begins.
    prompt: bytes


def generate_prompt(body: Buffer) -> bytes:
    """How the prompt of a generate request begins; empty: it has none, or is too large to look."""
    if len(body) > _READ_WHOLE:
        return b""
    try:
        found = _generate.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""  # for the worker to reject
    return _begin(found.messages, found.text_input)


def openai_fields(body: Buffer) -> OpenAIFields:
    """Raises if the body is no JSON object that names a model."""
    if len(body) > _MAX_BYTES:
        raise PayloadTooLarge(f"the request's JSON has {len(body)} bytes, at most {_MAX_BYTES} are allowed")
    try:
        found = _openai.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"failed to parse the request JSON: {error}") from None
    priority = found.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        priority = 0
    model = found.model if isinstance(found.model, str) else ""
    return OpenAIFields(model, found.stream is True, priority, _begin(found.messages, found.prompt))


def _begin(messages: msgspec.Raw, prompt: msgspec.Raw) -> bytes:
    raw = memoryview(messages) or memoryview(prompt)
    return bytes(raw[:_MOST])
