"""Answers of a token endpoint (RFC 6749, section 5). Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from isochrone.secure.oidc.fetching import Answer
from isochrone.secure.oidc.login.failures import LoginFailed, Refused


class Tokens(NamedTuple):
    """As the provider issued them; "" for a token that it did not issue."""

    access_token: str
    id_token: str
    refresh_token: str


def read_tokens(answer: Answer) -> Tokens:
    if answer.status != 200:
        raise refusal(answer)
    document = answer.document
    kind = document.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise LoginFailed("the provider issued a token of another type than Bearer")
    tokens = Tokens(*(document.get(name, "") for name in Tokens._fields))
    if not all(isinstance(each, str) and each.isascii() and each.isprintable() for each in tokens):
        raise LoginFailed("the provider issued a token that is no text")
    if not tokens.access_token:
        raise LoginFailed("the provider issued no access token")
    return tokens


def error_code(answer: Answer) -> str:
    """Of an answer that refuses; "" if it has none."""
    code = answer.document.get("error")
    return code if isinstance(code, str) else ""


def refusal(answer: Answer) -> LoginFailed:
    kind = Refused if answer.status in (400, 401, 403) else LoginFailed
    return kind(f"the provider refused: {described(answer.document, answer.status)}")


def described(document: Any, status: int = 0) -> str:
    """The provider's error in one line, without what a terminal would interpret."""
    said = [document.get(name) for name in ("error", "error_description")]
    words = [each for each in said if isinstance(each, str) and each]
    text = "".join(each if each.isprintable() else " " for each in ": ".join(words))[:300]
    return text or f"status {status} without a reason"
