"""The body of ``POST /v1/completions``. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.protocol.openai.call import Body, CompletionCall, flag, text, unsupported, whole, wrong
from isochrone.protocol.openai.options import (
    MOST_CHOICES,
    read_choices,
    read_parameters,
    read_sampling,
    read_stream,
    reject_others,
)

_OWN = frozenset(("prompt", "echo", "best_of"))
_MOST_LOGPROBS = 5


def read_completion(body: Body) -> CompletionCall:
    reject_others(body, _OWN)
    prompts = _prompts(body.get("prompt"))
    streams, includes_usage = read_stream(body)
    choices = read_choices(body, len(prompts))
    best_of = whole(body, "best_of", 1, MOST_CHOICES)
    if best_of not in (None, choices):
        raise unsupported("best_of", "every choice is returned; only the value of 'n' is served")
    echoes = flag(body, "echo")
    logprobs = whole(body, "logprobs", 0, _MOST_LOGPROBS)
    if echoes and logprobs is not None:
        raise unsupported("echo", "tokens of the prompt have no log probabilities; leave 'logprobs' out")
    return CompletionCall(
        text(body, "model"),
        False,
        prompts,
        choices,
        streams,
        includes_usage,
        echoes,
        logprobs,
        read_sampling(body, "max_tokens"),
        read_parameters(body),
    )


def _prompts(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if given is None:
        raise InvalidParameter("prompt", "'prompt': a required parameter is missing", "missing_required_parameter")
    if not isinstance(given, list) or not given:
        raise wrong("prompt", "a string or a list of strings", given)
    if _is_tokens(given) or any(isinstance(one, list) and _is_tokens(one) for one in given):
        raise unsupported("prompt", "token ids; send the text, the model has its own tokenizer")
    if len(given) > MOST_CHOICES or not all(isinstance(one, str) for one in given):
        raise wrong("prompt", f"a string or a list of up to {MOST_CHOICES} strings", given)
    return tuple(given)


def _is_tokens(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(one, int) and not isinstance(one, bool) for one in given)
