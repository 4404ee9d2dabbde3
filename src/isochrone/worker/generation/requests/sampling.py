"""How a request wants its tokens: the request's parameters, and the JSON of Triton's input ``sampling_parameters``.

Names and defaults are those of vLLM, as in Triton's backend for it. The drawing of tokens is deterministic by seed and
position: a sequence does not depend on the others of its steps.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np

from isochrone.clock import MILLISECOND
from isochrone.errors import InvalidArgument, RejectedParameter
from isochrone.worker.backends.generative import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = 2.0**-53
_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """The parameters of one request, checked."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    #: 0: all.
    top_k: int = 0
    stop: tuple[str, ...] = ()
    #: None: a random one.
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    #: Of the arrival; 0: no deadline.
    first_token_ns: int = 0
    #: Between two tokens; 0: no deadline.
    inter_token_ns: int = 0

    def seeded(self) -> GenerationParameters:
        """The same parameters with a seed."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(64))

    def sampling(self, position: int) -> Sampling:
        """How the token at a position is chosen. Only of parameters with a seed."""
        if not self.temperature:
            return _MOST_PROBABLE
        return Sampling(self.temperature, self.top_k, self.top_p, uniform(self.seed or 0, position))


_MOST_PROBABLE = Sampling(temperature=0.0)
#: Positions whose numbers are drawn at once: numpy takes 15 µs for any few of them, Python 1 µs for each.
_DRAWN = 64


class Draws:
    """How the tokens of one sequence are chosen: what ``GenerationParameters.sampling`` says, but faster."""

    __slots__ = ("_first", "_known", "_parameters")

    def __init__(self, parameters: GenerationParameters) -> None:
        """Of parameters with a seed."""
        self._parameters = parameters
        #: Those of the positions from ``_first`` on.
        self._known: list[Sampling] = []
        self._first = 0

    def at(self, position: int) -> Sampling:
        index = position - self._first
        if 0 <= index < len(self._known):
            return self._known[index]
        parameters = self._parameters
        if not parameters.temperature:
            return _MOST_PROBABLE
        temperature, top_k, top_p = parameters.temperature, parameters.top_k, parameters.top_p
        drawn = uniforms(parameters.seed or 0, position, _DRAWN)
        self._known = [Sampling(temperature, top_k, top_p, each) for each in drawn]
        self._first = position
        return self._known[0]


def uniforms(seed: int, first: int, count: int) -> list[float]:
    """``uniform`` of so many positions."""
    steps = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    with np.errstate(over="ignore"):  # as meant: modulo 2**64
        values = steps * np.uint64(_GOLDEN) + np.uint64(_mixed_seed(seed))
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        values ^= values >> np.uint64(31)
    drawn: list[float] = ((values >> np.uint64(11)).astype(np.float64) * _STEP).tolist()
    return drawn


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for a position of a seed: splitmix64 of Steele, Lea and Flood, as a counter."""
    # From a mixed seed: neighbouring seeds would otherwise meet at neighbouring positions.
    return (_mix((_mixed_seed(seed) + (position + 1) * _GOLDEN) & _MASK) >> 11) * _STEP


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=4096)
def _mixed_seed(seed: int) -> int:
    return _mix((seed + _GOLDEN) & _MASK)


def read_parameters(
    parameters: Mapping[str, Any],
    sampling_json: bytes | None = None,
    defaults: GenerationParameters | None = None,
    *,
    is_chat: bool = False,
) -> GenerationParameters:
    """Reads request parameters, which take precedence over the JSON. Raises ``InvalidArgument``.

    Unless somebody limits it, the answer of a chat may fill the context, as OpenAI's do.
    """
    fields: dict[str, Any] = {}
    if sampling_json is not None:
        for key, value in _json_object(sampling_json).items():
            if not _take(fields, key, value, "sampling_parameters: "):
                near = get_close_matches(key, _KNOWN, n=1, cutoff=0.6)
                meant = f" (did you mean '{near[0]}'?)" if near else ""
                raise InvalidArgument(
                    f"sampling_parameters: expected one of {', '.join(_READERS)}, given '{key[:100]}'{meant}"
                )
    for key, value in parameters.items():
        # Other parameters than ours may be there, such as headers that are passed on; a misspelling is not one of them.
        if not _take(fields, key, value, "") and (near := get_close_matches(key, _KNOWN, n=1, cutoff=0.85)):
            raise InvalidArgument(f"parameter '{key[:100]}': expected a known name (did you mean '{near[0]}'?)")
    defaults = defaults or GenerationParameters()
    if is_chat and defaults.max_tokens == GenerationParameters().max_tokens:
        fields.setdefault("max_tokens", _LARGEST)
    made = replace(defaults, **fields)
    if made.min_tokens > made.max_tokens:
        raise InvalidArgument(
            f"parameter 'min_tokens': expected at most max_tokens ({made.max_tokens}), given {made.min_tokens}"
        )
    return made


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(f"sampling_parameters: expected a JSON object, given {text[:60]!r}")
    return found


def _take(fields: dict[str, Any], key: str, value: Any, where: str) -> bool:
    """Reads one parameter; False: the name is unknown."""
    if key in _NEUTRAL:
        if value is not None and (isinstance(value, bool) or value not in _NEUTRAL[key]):
            allowed = " or ".join(map(repr, _NEUTRAL[key]))
            raise RejectedParameter(where, key, f"{allowed}: anything else is not supported", _shown(value))
        return True
    reader = _READERS.get(key)
    if reader is None:
        return False
    if value is not None:
        name, read = reader
        fields[name] = read(f"{where}parameter '{key}'", value)
    return True


_Read = Callable[[str, Any], Any]


def _number(text: str, lowest: float, highest: float, expected: str, *, above: bool = False) -> _Read:
    def read(name: str, value: Any) -> float:
        number = value
        # The clients of Triton's vLLM backend write numbers as strings.
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                raise _wrong(name, text, value) from None
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise _wrong(name, text, value)
        if not lowest <= number <= highest or (above and number == lowest):
            raise _wrong(name, expected, value)
        return float(number)

    return read


def _integer(lowest: int, highest: int) -> _Read:
    expected = f"a whole number from {lowest} to {highest}"

    def read(name: str, value: Any) -> int:
        number = value
        if isinstance(value, str):
            try:
                number = int(value) if len(value) < 30 else None
            except ValueError:
                raise _wrong(name, expected, value) from None
        if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= highest:
            raise _wrong(name, expected, value)
        return number

    return read


def _read_top_k(name: str, value: Any) -> int:
    # vLLM's -1 is its 0: all tokens.
    top_k: int = _integer(-1, _LARGEST)(name, value)
    return max(0, top_k)


def _read_boolean(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _read_stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    expected = f"a string, or a list of at most {_MAX_STOPS}"
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS:
        raise _wrong(name, expected, value)
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= _MAX_STOP_CHARACTERS:
            raise _wrong(name, f"{expected}, each of 1 to {_MAX_STOP_CHARACTERS} characters", stop)
    return tuple(dict.fromkeys(stops))


def _milliseconds(name: str, value: Any) -> int:
    number: float = _number("a number", 0, 1e9, "milliseconds above 0 and up to 1e9", above=True)(name, value)
    return max(1, round(number * MILLISECOND))


def _wrong(name: str, expected: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{name}: expected {expected}, given {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


#: Parameter → field, and how it is read.
_READERS: dict[str, tuple[str, _Read]] = {
    "max_tokens": ("max_tokens", _integer(1, _LARGEST)),
    "temperature": ("temperature", _number("a number", 0, 2, "a number from 0 to 2")),
    "top_p": ("top_p", _number("a number", 0, 1, "a number above 0 and up to 1", above=True)),
    "top_k": ("top_k", _read_top_k),
    "stop": ("stop", _read_stop),
    "seed": ("seed", _integer(-(1 << 63), _MASK)),
    "ignore_eos": ("ignore_eos", _read_boolean),
    "min_tokens": ("min_tokens", _integer(0, _LARGEST)),
    "time_to_first_token_ms": ("first_token_ns", _milliseconds),
    "inter_token_ms": ("inter_token_ns", _milliseconds),
}
#: Parameters of vLLM that have no effect here → the values that ask for none.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "logprobs": (0, 1),
    "lora_name": (),
}
_KNOWN = (*_READERS, *_NEUTRAL)
