"""Checks of a policy's options. Each error names the policy, the option, what is expected and what was given."""

from __future__ import annotations

from isochrone.errors import ConfigError


def number(policy: str, key: str, value: object, lowest: float, highest: float = float("inf")) -> float:
    """Check a number against inclusive bounds."""
    expected = f"a number from {lowest:g} to {highest:g}" if highest != float("inf") else f"a number from {lowest:g} on"
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise ConfigError(f"policy {policy}", key, expected, repr(value))
    return float(value)


def whole(policy: str, key: str, value: object, lowest: int, highest: int) -> int:
    """Check an integer against inclusive bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigError(f"policy {policy}", key, f"a whole number from {lowest} to {highest}", repr(value))
    return value


def one_of(policy: str, key: str, value: object, known: tuple[str, ...]) -> str:
    """Check a string against the allowed values."""
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"policy {policy}", key, f"one of {', '.join(known)}", repr(value))
    return value


def flag(policy: str, key: str, value: object) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise ConfigError(f"policy {policy}", key, "true or false", repr(value))
    return value
