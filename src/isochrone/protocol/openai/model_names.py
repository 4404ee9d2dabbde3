"""Which model and version a call means: ``"model": "name"``, ``"model": "name@3"``, and the header of gateways.

A gateway pins the version of a request when it admits it. The body passes unchanged, so the gateway adds
``x-isochrone-model: name=3``, which takes precedence over the body. Names in the header are percent-encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

from isochrone.errors import InvalidArgument
from isochrone.wire.exchange import Head

MODEL_HEADER: Final = b"x-isochrone-model"


def pinned_value(model: str, version: str) -> bytes:
    """The header's value; ``version`` "": the worker chooses."""
    name = quote(model, safe="")
    return (f"{name}={version}" if version else name).encode("ascii")


def pinned_model(head: Head) -> tuple[str, str] | None:
    """The model and version that a head pins; None: it pins none."""
    value = head.get(MODEL_HEADER)
    if value is None:
        return None
    name, _, version = value.decode("latin-1").strip().partition("=")
    try:
        model = unquote(name, errors="strict")
    except UnicodeDecodeError:
        model = ""
    if not model or (version and not (version.isascii() and version.isdigit())):
        raise InvalidArgument(f"header x-isochrone-model: expected name or name=version, given {value[:100]!r}")
    return model, version


def split_name(given: str, is_known: Callable[[str], bool]) -> tuple[str, str]:
    """The model and version of ``name`` or ``name@version``. A model whose own name has that form takes precedence."""
    name, at, version = given.rpartition("@")
    if not at or not name or not (version.isascii() and version.isdigit()) or is_known(given):
        return given, ""
    return name, version
