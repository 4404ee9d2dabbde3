"""Separates Triton's flags from ``isochrone serve``'s own options.

Triton accepts ``--flag=value`` and ``--flag value``, also for booleans. Own options are passed on in the form that
click parses; the others are collected for ``options``.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from isochrone.cli.triton.flags import BY_NAME, Flag, Outcome, Value

_TRUE = frozenset(("true", "on", "1"))
_FALSE = frozenset(("false", "off", "0"))


class BadFlag(Exception):
    """A flag that cannot be served as given; the message names it and says what to change."""


@dataclass(slots=True)
class GivenFlags:
    """Triton's flags that were given, apart from own options."""

    #: Flag → its values in the order given; a boolean is "true" or "false".
    values: dict[str, list[str]] = field(default_factory=dict)
    #: One sentence for each flag that has no effect.
    warnings: list[str] = field(default_factory=list)

    def text(self, name: str, default: str = "") -> str:
        """The last value given, for a flag that is not a list."""
        return self.values[name][-1] if name in self.values else default

    def boolean(self, name: str, default: bool) -> bool:
        return self.text(name, "true" if default else "false") == "true"

    def integer(self, name: str, default: int, minimum: int = 0) -> int:
        number = int(self.text(name, str(default)))
        if number < minimum:
            raise BadFlag(f"--{name}: expected an integer of at least {minimum}, given {number}")
        return number

    def all(self, name: str) -> list[str]:
        return self.values.get(name, [])


def read(words: Sequence[str]) -> tuple[list[str], GivenFlags]:
    """The arguments that are own options, and Triton's flags."""
    rest: list[str] = []
    given = GivenFlags()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            return [*rest, *words[position - 1 :]], given
        name, equals, value = word.partition("=")
        flag = BY_NAME.get(name[2:]) if name.startswith("--") else None
        if flag is None or flag.value is Value.NONE:
            if flag is None or flag.outcome is Outcome.OWN:
                rest.append(word)
            else:
                _note(flag, "true", given)
            continue
        if not equals:
            following = words[position] if position < len(words) else None
            if flag.value is Value.BOOLEAN and (following is None or following.lower() not in _TRUE | _FALSE):
                value = "true"
            elif following is None:
                raise BadFlag(f"{name}: expected {flag.value.value}, given nothing")
            else:
                value = following
                position += 1
        value = _checked(flag, value)
        if flag.outcome is not Outcome.OWN:
            _note(flag, value, given)
        elif flag.value is Value.BOOLEAN:
            rest.append(name if value == "true" else f"--no-{flag.name}")
        else:
            rest.append(f"{name}={value}")
    return rest, given


def own_switch(word: str, switches: Set[str]) -> str:
    """One of our own switches with a value, as Triton would write it: ``--log-json=false`` for ``--no-log-json``."""
    name, equals, value = word.partition("=")
    if not equals or f"--no-{name[2:]}" not in switches or value.lower() not in _TRUE | _FALSE:
        return word
    return name if value.lower() in _TRUE else f"--no-{name[2:]}"


def _checked(flag: Flag, value: str) -> str:
    try:
        if flag.value is Value.BOOLEAN:
            if value.lower() not in _TRUE | _FALSE:
                raise ValueError
            return "true" if value.lower() in _TRUE else "false"
        # Own options check their own values: some of them take more than Triton does.
        if flag.outcome is not Outcome.OWN:
            if flag.value is Value.INTEGER:
                return str(int(value))
            if flag.value is Value.NUMBER:
                float(value)
    except ValueError:
        raise BadFlag(f"--{flag.name}: expected {flag.value.value}, given {value!r}") from None
    return value


def _note(flag: Flag, value: str, given: GivenFlags) -> None:
    if flag.outcome is Outcome.TRANSLATED:
        given.values.setdefault(flag.name, []).append(value)
    elif value in flag.silent:
        return
    elif flag.outcome is Outcome.REFUSED:
        raise BadFlag(f"--{flag.name}={value} is refused: {flag.text}")
    else:
        warning = f"--{flag.name} has no effect: {flag.text}"
        if warning not in given.warnings:
            given.warnings.append(warning)
