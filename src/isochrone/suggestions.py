"""Suggestions for an unknown word in an error: the nearest known word, or the list of known words."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def suggestion(word: str, known: Sequence[str], kind: str = "key") -> str:
    """``a known key (did you mean 'dims'?)``, or the list of known words if none is near."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"a known {kind} (did you mean '{near[0]}'?)"
    return f"one of the known {plural(kind)} {', '.join(known)}"


def choice(word: object, known: Sequence[str]) -> str:
    """``fast or strict (did you mean 'strict'?)``."""
    near = get_close_matches(str(word), known, n=1, cutoff=0.6)
    names = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
    return names + (f" (did you mean '{near[0]}'?)" if near else "")


def plural(words: str) -> str:
    """``keys``, ``policies``, ``processes``, ``workers or gateways``."""
    if " or " in words:
        return " or ".join(plural(each) for each in words.split(" or "))
    if words.endswith("y") and words[-2:-1] not in "aeiou":
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("s", "x", "ch", "sh")) else f"{words}s"
