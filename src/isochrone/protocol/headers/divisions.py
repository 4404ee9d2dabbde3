"""The header ``x-isochrone-division: split``: how a divided model shall run a request, over HTTP or as gRPC metadata.

``edge`` and ``core`` name the whole model on one side, ``split`` the cut that is best at present; a division's own
name, as ``cut-12``, is taken too. Without the header, the worker runs its present division. Workers report the time
that each kind would take with their load.

``prefer split`` is a wish: the worker runs another division if that one is not offered, or if it fails and another can
still answer. A gateway sends it so, for it knows less of the link than the worker; a bare name is an order.
"""

from __future__ import annotations

from typing import Final, Protocol

DIVISION_HEADER: Final = b"x-isochrone-division"

DIVISION_KINDS: Final = ("edge", "split", "core")

_WISH: Final = "prefer"


class Fields(Protocol):
    """Header fields by name."""

    def get(self, name: bytes, /) -> bytes | None: ...


def division_of(head: Fields) -> str:
    """The division in a message head; "": the header is absent or empty."""
    return read_division(head.get(DIVISION_HEADER))


def read_division(value: bytes | None) -> str:
    """The same of the header's value; None: there is none."""
    return "" if value is None else value.decode("latin-1").strip()


def parse_division(text: str) -> tuple[str, bool]:
    """The name in the header's text, and whether it is only a wish."""
    word, _, name = text.partition(" ")
    return (name.strip(), True) if word == _WISH and name else (text, False)


def write_wish(kind: str) -> bytes:
    """The header's value for a division that is preferred."""
    return f"{_WISH} {kind}".encode("ascii")


def division_metric(kind: str) -> str:
    """The name in a load report of the late time: a request's expected time, with waits and the link's margin."""
    return f"named_metrics.division_{kind}_us"
