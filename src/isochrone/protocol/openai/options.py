"""Options that chat completions and completions share: sampling, streams, deadlines, and what is not served.

An option that would change the answer and cannot be served is an error that names it, unless its value asks for
nothing. Options that say nothing about the answer are ignored. Unknown options are errors: they may be misspelt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isochrone.protocol.messages import Parameter
from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.protocol.openai.call import Body, flag, number, unsupported, whole, wrong

#: Choices of one call, over all its prompts.
MOST_CHOICES = 128
_MOST_STOPS = 4
#: As of the backend ``generation``, whose errors would name its own parameters instead of the caller's.
_MOST_TOKENS = (1 << 31) - 1
_MOST_STOP_CHARACTERS = 1024
#: The largest deadline of tokens: eleven days, as of ``x-request-timeout-ms``.
_MOST_MILLISECONDS = 10**9

#: Read by this module.
COMMON = frozenset(
    (
        "model",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "ignore_eos",
        "seed",
        "stop",
        "logprobs",
        "priority",
        "time_to_first_token_ms",
        "inter_token_ms",
    )
)
#: For the caller's own books, or hints: an answer is the same with and without them.
IGNORED = frozenset(
    (
        "metadata",
        "store",
        "user",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
    )
)


def _is_zero(value: object) -> bool:
    return value == 0 and not isinstance(value, bool)


def _never(value: object) -> bool:
    return False


_NO_TOOLS = "models call no tools here"
#: Option → (whether a value asks for nothing, why others are rejected). null always asks for nothing.
_UNSERVED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (lambda value: value == [], _NO_TOOLS),
    "tool_choice": (lambda value: value in ("none", "auto"), _NO_TOOLS),
    "functions": (lambda value: value == [], _NO_TOOLS),
    "function_call": (lambda value: value in ("none", "auto"), _NO_TOOLS),
    "response_format": (lambda value: value == {"type": "text"}, "answers are plain text; only type 'text' is served"),
    "presence_penalty": (_is_zero, "only 0 is served"),
    "frequency_penalty": (_is_zero, "only 0 is served"),
    "logit_bias": (lambda value: value == {}, "tokens have no biases here"),
    "modalities": (lambda value: value == ["text"], "answers are text"),
    "audio": (_never, "answers are text"),
    "web_search_options": (_never, "models search nothing here"),
    "reasoning_effort": (_never, "say it in the messages, where the model knows it"),
    "verbosity": (_never, "say it in the messages, where the model knows it"),
    "suffix": (lambda value: value == "", "text is not inserted"),
}


def reject_others(body: Body, known: frozenset[str]) -> None:
    """Raise for an option that is not served, or that nobody knows."""
    for key, value in body.items():
        if key in known or key in COMMON or key in IGNORED:
            continue
        rule = _UNSERVED.get(key)
        if rule is None:
            raise InvalidParameter(key, f"Unrecognized request argument supplied: {key[:100]}", "unknown_parameter")
        asks_nothing, reason = rule
        if value is not None and not asks_nothing(value):
            raise unsupported(key, reason)


def read_sampling(body: Body, *token_keys: str) -> dict[str, Any]:
    """The sampling parameters that are given. ``token_keys``: names of the greatest number of tokens."""
    limits = {key: value for key in token_keys if (value := whole(body, key, 1, _MOST_TOKENS)) is not None}
    if len(set(limits.values())) > 1:
        raise wrong(token_keys[0], f"the value of '{token_keys[1]}', or none", limits[token_keys[0]])
    top_p = number(body, "top_p", 0, 1)
    if top_p == 0:
        raise wrong("top_p", "a number above 0, up to 1", top_p)
    sampling = {
        "max_tokens": next(iter(limits.values()), None),
        "temperature": number(body, "temperature", 0, 2),
        "top_p": top_p,
        "top_k": whole(body, "top_k", -1, _MOST_TOKENS),
        "seed": whole(body, "seed", -(1 << 63), (1 << 63) - 1),
        "stop": _stops(body.get("stop")),
        "ignore_eos": flag(body, "ignore_eos") or None,
    }
    return {key: value for key, value in sampling.items() if value is not None}


def _stops(value: Any) -> list[str] | None:
    given = [value] if isinstance(value, str) else value
    if given is None or given == []:
        return None
    if (
        not isinstance(given, list)
        or len(given) > _MOST_STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= _MOST_STOP_CHARACTERS for one in given)
    ):
        expected = f"a string or a list of up to {_MOST_STOPS} strings, each of 1 to {_MOST_STOP_CHARACTERS} characters"
        raise wrong("stop", expected, value)
    return given


def read_stream(body: Body) -> tuple[bool, bool]:
    """Whether the answer is a stream, and whether its last event has the usage."""
    streams = flag(body, "stream")
    options = body.get("stream_options")
    if options is None:
        return streams, False
    if not isinstance(options, dict):
        raise wrong("stream_options", "an object", options)
    if not streams:
        raise InvalidParameter("stream_options", "'stream_options' is only allowed when 'stream' is true")
    return True, flag(options, "include_usage")


def read_choices(body: Body, prompts: int) -> int:
    choices = whole(body, "n", 1, MOST_CHOICES)
    if (choices or 1) * prompts > MOST_CHOICES:
        raise wrong("n", f"at most {MOST_CHOICES} choices over {prompts} prompts", choices)
    return choices or 1


def read_parameters(body: Body) -> dict[str, Parameter]:
    """What the request's parameters say to the scheduler of the worker."""
    parameters: dict[str, Parameter] = {}
    priority = whole(body, "priority", 0, 1 << 31)
    if priority:
        parameters["priority"] = priority
    for key in ("time_to_first_token_ms", "inter_token_ms"):
        milliseconds = number(body, key, 0, _MOST_MILLISECONDS)
        if milliseconds == 0:
            raise wrong(key, "a number above 0", milliseconds)
        if milliseconds is not None:
            parameters[key] = float(milliseconds)
    return parameters
