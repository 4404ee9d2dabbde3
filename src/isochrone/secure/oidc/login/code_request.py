"""One authorization request with PKCE (RFC 7636) and the answer that belongs to it. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from isochrone.secure.oidc.discovery import Discovery
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.token_answers import described
from isochrone.secure.oidc.settings import Provider


@dataclass(frozen=True, slots=True)
class CodeRequest:
    provider: Provider
    redirect_uri: str
    #: Ties the answer to this request: another site cannot log the user in as somebody else.
    state: str
    #: Ties the ID token to this request.
    nonce: str
    #: Ties the code to this process: whoever sees the code cannot exchange it.
    code_verifier: str

    @classmethod
    def new(cls, provider: Provider, redirect_uri: str) -> CodeRequest:
        return cls(provider, redirect_uri, *(secrets.token_urlsafe(32) for _ in range(3)))

    def url(self, endpoint: str) -> str:
        query = {
            **(self.provider.login_parameters or {}),
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.provider.scopes),
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": challenge(self.code_verifier),
            "code_challenge_method": "S256",
        }
        if "offline_access" in self.provider.scopes:
            # OpenID Connect Core, section 11: without consent there is no refresh token.
            query["prompt"] = "consent"
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def is_answer(self, parameters: Mapping[str, str]) -> bool:
        """Whether a request at the redirect's address is the provider's answer, and not a stranger's."""
        return hmac.compare_digest(parameters.get("state", "").encode(), self.state.encode())

    def code_of(self, parameters: Mapping[str, str], found: Discovery) -> str:
        """The code of an answer."""
        stated = parameters.get("iss", self.provider.issuer if not found.states_issuer else "")
        if stated != self.provider.issuer:
            # RFC 9207: another provider's answer, whose code must not be sent to this one.
            raise LoginFailed("the answer of the login is of another issuer")
        if "error" in parameters:
            raise LoginFailed(f"the provider refused: {described(parameters)}")
        code = parameters.get("code", "")
        if not code:
            raise LoginFailed("the answer of the login has no code")
        return code

    def exchange(self, code: str) -> dict[str, str]:
        """The form for the token endpoint."""
        return {
            **(self.provider.login_parameters or {}),
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.code_verifier,
        }


def challenge(code_verifier: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
