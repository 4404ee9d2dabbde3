"""The settings of a control loop, checked once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass

from isochrone.clock import MICROSECOND, MILLISECOND, SECOND
from isochrone.errors import ConfigError

LOWEST_HZ, HIGHEST_HZ = 1.0, 1000.0
_LATE_ANSWER_MS = 250.0
_WHERE = "isochrone.ControlLoop"


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Rate and budgets of a loop."""

    #: Ticks per second.
    hz: float
    #: Stage budgets in ns: each stage must end by the sum of the budgets up to its own, after the tick's start.
    sense: int
    infer: int
    act: int
    #: How long an answer is waited for after it was asked for, in ns. Late ones are reported.
    late_answer: int
    #: Between the planned end of a local run and the end of the stage, in ns: timers of asyncio fire up to 1 ms late.
    margin: int
    #: How many ticks in a row repeat the last action before the fallback is used.
    hold_last_ticks: int


def checked_settings(
    hz: float,
    sense_ms: float,
    infer_ms: float,
    act_ms: float,
    late_answer_ms: float | None,
    margin_ms: float,
    hold_last_ticks: int,
) -> LoopSettings:
    """Raises ``ConfigError``."""
    rates = f"{LOWEST_HZ:g} to {HIGHEST_HZ:,g} ticks per second"
    if not _is_number(hz) or not LOWEST_HZ <= hz <= HIGHEST_HZ:
        raise ConfigError(_WHERE, "hz", rates, repr(hz))
    budgets = {"sense_ms": sense_ms, "infer_ms": infer_ms, "act_ms": act_ms}
    for key, value in budgets.items():
        if not _is_number(value) or value <= 0:
            raise ConfigError(_WHERE, key, "milliseconds above 0", repr(value))
    if late_answer_ms is None:
        late_answer_ms = max(_LATE_ANSWER_MS, 2 * infer_ms)
    if not _is_number(late_answer_ms) or late_answer_ms < infer_ms:
        expected = f"milliseconds, at least infer_ms ({infer_ms:g}), or None"
        raise ConfigError(_WHERE, "late_answer_ms", expected, repr(late_answer_ms))
    sense, infer, act = (round(value * MILLISECOND) for value in budgets.values())
    # Budgets that were computed from the period may exceed it by their rounding.
    if sense + infer + act > SECOND / hz + MICROSECOND:
        given = f"{' + '.join(f'{value:g}' for value in budgets.values())} = {sum(budgets.values()):g}"
        expected = f"at most {1000 / hz:g} ms together, the period of {hz:g} Hz"
        raise ConfigError(_WHERE, "sense_ms, infer_ms, act_ms", expected, given)
    if not _is_number(margin_ms) or not 0 <= margin_ms < infer_ms:
        raise ConfigError(_WHERE, "margin_ms", f"0 or more, and less than infer_ms ({infer_ms:g})", repr(margin_ms))
    if type(hold_last_ticks) is not int or hold_last_ticks < 0:
        raise ConfigError(_WHERE, "hold_last_ticks", "a number of ticks, 0 or more", repr(hold_last_ticks))
    waits = round(late_answer_ms * MILLISECOND)
    return LoopSettings(hz, sense, infer, act, waits, round(margin_ms * MILLISECOND), hold_last_ticks)


def checked_functions(sense: object, act: object, local: object, on_late: object, fallback: object) -> None:
    """Raises ``ConfigError``."""
    expected = {
        "sense": (sense, "a function that returns the model's inputs"),
        "act": (act, "a function that takes an action"),
        "local": (local, "a function from inputs to outputs, or None for a loop without a local model"),
        "on_late": (on_late, "a function of tick, answer and age, or None"),
    }
    for key, (given, wanted) in expected.items():
        if not callable(given) and not (given is None and "None" in wanted):
            raise ConfigError(_WHERE, key, wanted, repr(given))
    if inspect.iscoroutinefunction(on_late):
        raise ConfigError(_WHERE, "on_late", "a function that is not asynchronous", repr(on_late))
    if not isinstance(fallback, Mapping) or not fallback:
        raise ConfigError(
            _WHERE, "fallback", "a dict of outputs to act on when no model has answered in time", repr(fallback)
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
