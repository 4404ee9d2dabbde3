"""One call of ``/v1/chat/completions`` or ``/v1/completions`` after its body was read, and checks of single fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isochrone.protocol.messages import Parameter
from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.protocol.tensors.datatypes import shown

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """What a caller asks for."""

    #: As the caller wrote it.
    model: str
    is_chat: bool
    #: Texts; of a chat, one: its messages as JSON.
    prompts: tuple[str, ...]
    #: Choices per prompt.
    choices: int = 1
    streams: bool = False
    #: The last event of the stream has the usage.
    includes_usage: bool = False
    #: The prompt stands before each answer.
    echoes: bool = False
    #: Most alternatives per token; None: no log probabilities are asked for.
    logprobs: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    #: Request parameters: priority, and deadlines of tokens.
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def wrong(parameter: str, expected: str, given: object) -> InvalidParameter:
    return InvalidParameter(parameter, f"'{parameter}': expected {expected}, given {shown(given)}", "invalid_value")


def unsupported(parameter: str, reason: str) -> InvalidParameter:
    return InvalidParameter(parameter, f"'{parameter}' is not supported: {reason}", "unsupported_parameter")


def text(body: Body, key: str) -> str:
    value = body.get(key)
    if value is None:
        raise InvalidParameter(key, f"'{key}': a required parameter is missing", "missing_required_parameter")
    if not isinstance(value, str) or not value:
        raise wrong(key, "a string that is not empty", value)
    return value


def flag(body: Body, key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise wrong(key, "true or false", value)
    return bool(value)


def whole(body: Body, key: str, lowest: int, highest: int) -> int | None:
    """An integer within inclusive bounds; None: it is not given."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise wrong(key, f"an integer from {lowest} to {highest}", body[key])
    return value


def number(body: Body, key: str, lowest: float, highest: float) -> float | None:
    """A number within inclusive bounds; None: it is not given."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(key, f"a number from {lowest:g} to {highest:g}", value)
    if not lowest <= value <= highest:
        raise wrong(key, f"a number from {lowest:g} to {highest:g}", value)
    return value
