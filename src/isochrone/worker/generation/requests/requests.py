"""The inputs of a generation request, which are those of Triton's backend for vLLM, and ``messages`` for chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.errors import InvalidArgument
from isochrone.models.configuration.generation_signature import EXTRA_OUTPUTS
from isochrone.worker.backends.generative import Tokenizer
from isochrone.worker.generation.requests.sampling import GenerationParameters, read_parameters

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a request asks for. The prompt is read, but not yet parsed or tokenised."""

    parameters: GenerationParameters
    #: The prompt, or the JSON of a chat's messages; the other one is None.
    text: str | None
    messages: bytes | None
    #: A response per piece of text; otherwise one for all of it.
    streams: bool
    #: Whether the answer begins with the prompt.
    repeats_prompt: bool
    #: Names of the outputs beside ``text_output``.
    extra: frozenset[str]

    @property
    def size(self) -> int:
        """Characters or bytes of the prompt."""
        return len(self.text if self.text is not None else self.messages or b"")

    def prompt(self, tokenizer: Tokenizer) -> tuple[str, list[int]]:
        """The prompt as text and as tokens; raises ``InvalidArgument``. It may take long."""
        if self.text is not None:
            text = self.text
            tokens = tokenizer.encode(text, special=True)
        else:
            text = tokenizer.render_chat(_read_messages(self.messages or b""))
            tokens = tokenizer.encode(text, special=False)
        if not tokens:
            raise InvalidArgument("the prompt has no tokens: expected at least one, given an empty text")
        return text, tokens


def read_request(request: InferRequest, defaults: GenerationParameters) -> GenerationRequest:
    """Raises ``InvalidArgument``. It parses nothing long."""
    inputs, asked = request.inputs, request.plan.outputs
    text, messages = _bytes(inputs, "text_input"), _bytes(inputs, "messages")
    if (text is None) == (messages is None):
        given = "neither" if text is None else "both"
        raise InvalidArgument(f"expected one of the inputs 'text_input' and 'messages', given {given}")
    streams = _flag(inputs, "stream")
    excludes = _flag(inputs, "exclude_input_in_output") if "exclude_input_in_output" in inputs else None
    if excludes is None:
        repeats = not streams and text is not None
    else:
        repeats = not excludes
    if repeats and streams:
        raise InvalidArgument("input 'exclude_input_in_output': expected true where 'stream' is true, given false")
    extra = frozenset(
        output
        for output, flag in EXTRA_OUTPUTS.items()
        if _flag(inputs, flag) or (asked is not None and output in asked)
    )
    given_json = _bytes(inputs, "sampling_parameters")
    parameters = read_parameters(request.plan.parameters, given_json, defaults, is_chat=messages is not None)
    decoded = None if text is None else _decoded(text)
    return GenerationRequest(parameters, decoded, messages, streams, repeats, extra)


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"input 'text_input': expected UTF-8, given {error.reason} at byte {error.start}"
        ) from None


def _read_messages(text: bytes) -> Sequence[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"input 'messages': expected JSON, given {text[:60]!r} ({error})") from None
    if not isinstance(found, list) or not found:
        raise InvalidArgument(f"input 'messages': expected a list of at least one message, given {text[:60]!r}")
    for number, message in enumerate(found):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidArgument(
                f"input 'messages': message {number}: expected an object with a 'role', given {str(message)[:60]}"
            )
    return found


def _bytes(inputs: Tensors, name: str) -> bytes | None:
    array = inputs.get(name)
    if array is None:
        return None
    value = array.flat[0]
    return value.encode() if isinstance(value, str) else bytes(value)


def _flag(inputs: Tensors, name: str) -> bool:
    array = inputs.get(name)
    return array is not None and bool(array.flat[0])
