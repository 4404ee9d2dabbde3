"""What a gateway reads of requests to models that generate text: how the prompt begins, and OpenAI's routing fields.

Prompts are compared as the caller wrote them in JSON: prompts that begin alike do so there, too. Only the named members
are decoded. Reading a megabyte takes the event loop 1 to 2 ms, so of larger bodies only both ends are read, if these
have what is looked for: clients write the prompt first or last, and the other members together. Pure.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from isochrone.errors import InvalidArgument, PayloadTooLarge
from isochrone.wire.exchange import Buffer

#: Bytes of a prompt that are kept.
_MOST = 64 * 1024
#: A generate request up to this size is read for its prompt, which takes up to 0.3 ms.
_READ_WHOLE = 256 * 1024
#: A call under ``/v1`` up to this size is read whole; one chat of a megabyte takes 1.3 ms, of short messages 1.5 ms.
_READ_CALL = 1024 * 1024
#: Of a larger one, so many bytes at its beginning and at its end.
_END_BYTES = 8 * 1024
#: Members at the ends that are tried: a prompt may contain the same names.
_TRIES = 8
#: The limit of workers for JSON.
_MAX_BYTES = 16 * 1024 * 1024
#: In a text, its quotes would be escaped.
_STREAM = re.compile(rb'"stream"\s*:')
_PROMPT = re.compile(rb'"(?:messages|prompt)"\s*:\s*')
_ROUTING = re.compile(rb'"(?:model|stream|priority)"\s*:')
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
    if len(body) > _READ_CALL:
        found, prompt = _ends(memoryview(body))
        # Rare: something large besides the prompt hides one of them.
        if found.model is not None and (found.stream is not None or _STREAM.search(body) is None):
            return _fields(found, prompt)
    try:
        found = _openai.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"failed to parse the request JSON: {error}") from None
    return _fields(found, _begin(found.messages, found.prompt))


def _ends(body: memoryview) -> tuple[_OpenAI, bytes]:
    """The members before and after the prompt, and how the prompt begins. Whether the rest is JSON, the worker finds
    out."""
    head, tail = bytes(body[:_END_BYTES]), bytes(body[-_END_BYTES:])
    found, prompt = _OpenAI(), b""
    for match in list(_PROMPT.finditer(head))[:_TRIES]:
        before = _member(head[: match.start()].rstrip().removesuffix(b",") + b"}")
        if before is not None:
            found, prompt = before, bytes(body[match.end() : match.end() + _MOST])
            break
    # The first that can be read up to the end is a member of the whole object, and so are those behind it.
    for match in list(_ROUTING.finditer(tail))[-_TRIES:]:
        after = _member(b"{" + tail[match.start() :])
        if after is not None:
            for name in ("model", "stream", "priority"):
                # Of two members with one name, the later one counts.
                if getattr(after, name) is not None:
                    setattr(found, name, getattr(after, name))
            break
    return found, prompt


def _member(text: bytes) -> _OpenAI | None:
    try:
        return _openai.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fields(found: _OpenAI, prompt: bytes) -> OpenAIFields:
    priority = found.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        priority = 0
    model = found.model if isinstance(found.model, str) else ""
    return OpenAIFields(model, found.stream is True, priority, prompt)


def _begin(messages: msgspec.Raw, prompt: msgspec.Raw) -> bytes:
    raw = memoryview(messages) or memoryview(prompt)
    return bytes(raw[:_MOST])
