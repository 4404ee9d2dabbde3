"""What a gateway reads of requests to models that generate text: the beginning of the prompt, deadlines of tokens, and
OpenAI's routing fields.

Prompts are compared as the caller wrote them in JSON: prompts that begin alike do so there, too. Only the named members
are decoded. Reading a megabyte takes the event loop 1 to 2 ms, so of larger bodies only both ends are read, if these
have what is looked for: clients write the prompt first or last, and the other members together. Pure.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from isochrone.clock import MILLISECOND
from isochrone.errors import InvalidArgument, PayloadTooLarge
from isochrone.gateway.traffic.parameters import (
    NONE,
    ParameterFields,
    Parameters,
    both_ends,
    may_contain,
    read_bounded,
)
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
_TRIES = 16
#: The limit of workers for JSON.
_MAX_BYTES = 16 * 1024 * 1024
#: In a text, its quotes would be escaped.
_STREAM = re.compile(rb'"stream"\s*:')
_PROMPT = re.compile(rb'"(?:messages|prompt)"\s*:\s*')
_TEXT = re.compile(rb'"(?:messages|text_input)"\s*:\s*')
#: Members beside the prompt.
_ROUTING = ("model", "stream", "priority", "time_to_first_token_ms", "inter_token_ms")
_PARAMETERS = ("sequence_id", "timeout", "priority", "sequence_start")
_GENERATE = ("parameters", "time_to_first_token_ms", "inter_token_ms", *_PARAMETERS)
#: The longest deadline, as of workers: eleven days.
_MOST_MILLISECONDS = 1e9
_NONE = msgspec.Raw(b"")


class TokenTimes(NamedTuple):
    """The deadlines of tokens that a request asks for; 0: none."""

    #: From its arrival to the first token.
    first_ns: int
    between_ns: int


class _GenerateParameters(ParameterFields):
    time_to_first_token_ms: Any = None
    inter_token_ms: Any = None


class _Generate(msgspec.Struct):
    """To workers, each member that names no input is a parameter."""

    text_input: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    time_to_first_token_ms: Any = None
    inter_token_ms: Any = None
    sequence_id: Any = None
    timeout: Any = None
    priority: Any = None
    sequence_start: Any = None
    #: Holds parameters, too.
    parameters: _GenerateParameters | None = None


class _OpenAI(msgspec.Struct):
    model: Any = None
    stream: Any = None
    priority: Any = None
    time_to_first_token_ms: Any = None
    inter_token_ms: Any = None
    prompt: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE


_Found = TypeVar("_Found", _Generate, _OpenAI)
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
    tokens: TokenTimes | None = None


class GenerateFields(NamedTuple):
    """What decides where a generate request goes."""

    parameters: Parameters = NONE
    tokens: TokenTimes | None = None
    #: How the prompt begins; empty: it has none, is not asked for, or is too large to look.
    prompt: bytes = b""


_NO_FIELDS = GenerateFields()


def generate_fields(body: Buffer, reads_prompt: bool) -> GenerateFields:
    """Of a generate request. Raises as ``read_bounded`` does."""
    size = len(body)
    if size > _READ_WHOLE:
        parameters = read_bounded(body, size)
        if not _is_worth_reading(bytes(body[:_END_BYTES]) + bytes(body[-_END_BYTES:])):
            return GenerateFields(parameters)
        large, _ = _ends(memoryview(body), _generate, _Generate(), _TEXT, _GENERATE)
        return GenerateFields(_generate_parameters(large, parameters), _generate_tokens(large))
    if not (reads_prompt or _is_worth_reading(both_ends(body, size))):
        return _NO_FIELDS
    try:
        found = _generate.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return GenerateFields(read_bounded(body, size))  # for the worker to reject, mostly
    parameters = NONE if found.parameters is None else found.parameters.checked()
    prompt = _begin(found.messages, found.text_input) if reads_prompt else b""
    return GenerateFields(_generate_parameters(found, parameters), _generate_tokens(found), prompt)


def _is_worth_reading(ends: bytes) -> bool:
    """Whether a generate request with these ends may have more than a prompt."""
    return b'"time_to_first_token_ms"' in ends or b'"inter_token_ms"' in ends or may_contain(ends)


def _generate_parameters(found: _Generate, inner: Parameters) -> Parameters:
    """Those beside the prompt, and those of ``parameters``; one that stands in both is for the worker to reject."""
    own = [getattr(found, name) for name in _PARAMETERS]
    if own == [None] * len(own):
        return inner
    scalars = (value if isinstance(value, int | float | str) else None for value in own)
    outer = ParameterFields(**dict(zip(_PARAMETERS, scalars, strict=True))).checked()
    return Parameters(
        inner.sequence or outer.sequence,
        inner.timeout_ns or outer.timeout_ns,
        inner.priority or outer.priority,
        inner.starts_sequence or outer.starts_sequence,
    )


def _generate_tokens(found: _Generate) -> TokenTimes | None:
    inner = found.parameters or _GenerateParameters()
    first, between = found.time_to_first_token_ms, found.inter_token_ms
    return token_times(
        inner.time_to_first_token_ms if first is None else first, inner.inter_token_ms if between is None else between
    )


def openai_fields(body: Buffer) -> OpenAIFields:
    """Raises if the body is no JSON object that names a model."""
    if len(body) > _MAX_BYTES:
        raise PayloadTooLarge(f"the request's JSON has {len(body)} bytes, at most {_MAX_BYTES} are allowed")
    if len(body) > _READ_CALL:
        found, prompt = _ends(memoryview(body), _openai, _OpenAI(), _PROMPT, _ROUTING)
        # Rare: something large besides the prompt hides one of them.
        if found.model is not None and (found.stream is not None or _STREAM.search(body) is None):
            return _fields(found, prompt)
    try:
        found = _openai.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"failed to parse the request JSON: {error}") from None
    return _fields(found, _begin(found.messages, found.prompt))


def _ends(
    body: memoryview,
    decoder: msgspec.json.Decoder[_Found],
    found: _Found,
    prompt_name: re.Pattern[bytes],
    names: tuple[str, ...],
) -> tuple[_Found, bytes]:
    """The members ``names`` before and after the prompt, or ``found``, and how the prompt begins. Whether the rest is
    JSON, the worker finds out."""
    head, tail = bytes(body[:_END_BYTES]), bytes(body[-_END_BYTES:])
    prompt = b""
    for match in list(prompt_name.finditer(head))[:_TRIES]:
        before = _member(decoder, head[: match.start()].rstrip().removesuffix(b",") + b"}")
        if before is not None:
            found, prompt = before, bytes(body[match.end() : match.end() + _MOST])
            break
    # The first that can be read up to the end is a member of the whole object, and so are those behind it.
    routing = re.compile(rb'"(?:%b)"\s*:' % "|".join(names).encode())
    for match in list(routing.finditer(tail))[-_TRIES:]:
        after = _member(decoder, b"{" + tail[match.start() :])
        if after is not None:
            for name in names:
                # Of two members with one name, the later one counts.
                if getattr(after, name) is not None:
                    setattr(found, name, getattr(after, name))
            break
    return found, prompt


def _member(decoder: msgspec.json.Decoder[_Found], text: bytes) -> _Found | None:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def token_times(first: Any, between: Any) -> TokenTimes | None:
    """From milliseconds as the caller wrote them; None: no deadline, or none that a worker would take."""
    if first is None and between is None:
        return None
    times = TokenTimes(_nanoseconds(first), _nanoseconds(between))
    return times if times != (0, 0) else None


def _nanoseconds(milliseconds: Any) -> int:
    """0: not given, or for the worker to reject. Clients write numbers as strings, too."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float | str):
        return 0
    try:
        number = float(milliseconds)
    except (ValueError, OverflowError):
        return 0
    return max(1, round(number * MILLISECOND)) if 0 < number <= _MOST_MILLISECONDS else 0


def _fields(found: _OpenAI, prompt: bytes) -> OpenAIFields:
    priority = found.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        priority = 0
    model = found.model if isinstance(found.model, str) else ""
    tokens = token_times(found.time_to_first_token_ms, found.inter_token_ms)
    return OpenAIFields(model, found.stream is True, priority, prompt, tokens)


def _begin(messages: msgspec.Raw, prompt: msgspec.Raw) -> bytes:
    raw = memoryview(messages) or memoryview(prompt)
    return bytes(raw[:_MOST])
