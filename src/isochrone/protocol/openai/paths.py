"""The paths of this front. Workers and gateways serve the same ones."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from isochrone.errors import InvalidArgument, MethodNotAllowed, NotFound
from isochrone.wire.exchange import Head

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"


def find_path(head: Head) -> tuple[str, str]:
    """One of the three paths, and the model that it names ("": none). Raises for any other request."""
    path = head.target.partition(b"?")[0]
    text = path.decode("latin-1").rstrip("/")
    if text in (CHAT, COMPLETIONS):
        _expect(head, text, b"POST")
        return text, ""
    if text == MODELS or text.startswith(f"{MODELS}/"):
        _expect(head, MODELS, b"GET", b"HEAD")
        return MODELS, _unquote(text[len(MODELS) + 1 :])
    raise NotFound(
        f"Unknown request URL: {text[:200]}; served are POST {CHAT}, POST {COMPLETIONS}, GET {MODELS} and "
        f"GET {MODELS}/{{model}}"
    )


def _expect(head: Head, path: str, *methods: bytes) -> None:
    if head.method not in methods:
        raise MethodNotAllowed(f"{path}: expected {methods[0].decode()}, given {head.method.decode('latin-1')[:20]}")


def _unquote(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path's '{text[:100]}' is not valid UTF-8 when unquoted") from None
