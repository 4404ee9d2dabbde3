"""The parameters of config.pbtxt that decide how a model generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.worker.generation.requests.sampling import GenerationParameters, read_parameters
from isochrone.worker.generation.scheduling.scheduler import SchedulerRules

_BATCHING = ("continuous", "static", "single")
_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
#: Parameters of requests that a model may set for requests that state none.
_DEFAULTS = ("max_tokens", "temperature", "top_p", "top_k", "time_to_first_token_ms", "inter_token_ms")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """The options of one model version."""

    rules: SchedulerRules = field(default_factory=SchedulerRules)
    #: Of requests that state none.
    defaults: GenerationParameters = field(default_factory=GenerationParameters)
    #: Priority of requests that state none.
    default_priority: int = 1
    #: A stream whose client has read nothing for so long is ended.
    stalled_ns: int = 30_000 * MILLISECOND
    #: Limit of one step; 0: none.
    execution_timeout_ns: int = 0


def read_settings(parameters: Mapping[str, str], where: str) -> GenerationSettings:
    """``parameters`` as config.pbtxt has them; raises ``ConfigError``."""
    given = {key: parameters[key].strip() for key in _DEFAULTS if parameters.get(key, "").strip()}
    try:
        defaults = read_parameters(given)
    except InvalidArgument as error:
        raise ConfigError(where, "parameters", "values that requests may have", str(error)) from None
    return GenerationSettings(
        SchedulerRules(
            max_waiting=_integer(parameters, "max_waiting", 256, where),
            batching=_choice(parameters, where),
            chunks_prompts=_boolean(parameters, "chunked_prefill", where),
            reuses_prefixes=_boolean(parameters, "prefix_reuse", where),
        ),
        defaults,
        _integer(parameters, "default_priority", 1, where),
        _integer(parameters, "stalled_stream_ms", 30_000, where) * MILLISECOND,
        _integer(parameters, "execution_timeout_ms", 0, where, minimum=0) * MILLISECOND,
    )


def _integer(parameters: Mapping[str, str], key: str, default: int, where: str, *, minimum: int = 1) -> int:
    text = parameters.get(key, "").strip()
    if not text:
        return default
    if not text.isdecimal() or len(text) > 12 or int(text) < minimum:
        raise ConfigError(where, f'parameters["{key}"]', f"a whole number of at least {minimum}", repr(text))
    return int(text)


def _boolean(parameters: Mapping[str, str], key: str, where: str) -> bool:
    text = parameters.get(key, "").strip().lower()
    if text not in ("", *_TRUE, *_FALSE):
        raise ConfigError(where, f'parameters["{key}"]', "true or false", repr(text))
    return text not in _FALSE


def _choice(parameters: Mapping[str, str], where: str) -> Any:
    text = parameters.get("batching", "").strip().lower() or _BATCHING[0]
    if text not in _BATCHING:
        raise ConfigError(where, 'parameters["batching"]', f"one of {', '.join(_BATCHING)}", repr(text))
    return text
