"""Whether access rules leave anybody who may apply a file."""

from __future__ import annotations

import pytest

from isochrone.secure.access.administration import has_administrator
from isochrone.secure.access.document import parse_access
from isochrone.settings.documents import parse_document

NOW = 1_800_000_000.0  # in January 2027
TOKEN = f"sha256: {'a' * 64}"
PROVIDER = "providers: {plant: {issuer: https://login.example, audience: fleet}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tokens: {}", False),
        (f"tokens: {{ada: {{{TOKEN}}}}}", False),
        (f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:ada'], roles: [operator]}}]", False),
        (f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:ada'], roles: [admin]}}]", True),
        (f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:*'], roles: [admin]}}]", True),
        (f"tokens: {{ada: {{{TOKEN}, revoked: true}}}}\nassign: [{{to: ['token:ada'], roles: [admin]}}]", False),
        (f"tokens: {{ada: {{{TOKEN}, expires: 2026-12-31}}}}\nassign: [{{to: ['token:ada'], roles: [admin]}}]", False),
        (f"tokens: {{ada: {{{TOKEN}, groups: [ops]}}}}\nassign: [{{to: ['group:ops'], roles: [admin]}}]", True),
        # Roles of the file: a built-in one that is replaced, one for some models alone, one with everything.
        (
            f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:ada'], roles: [admin]}}]\n"
            "roles: {admin: [{may: [fleet-read]}]}",
            False,
        ),
        (
            f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:ada'], roles: [some]}}]\n"
            "roles: {some: [{may: ['*'], models: [vision]}]}",
            False,
        ),
        (
            f"tokens: {{ada: {{{TOKEN}}}}}\nassign: [{{to: ['token:ada'], roles: [all]}}]\n"
            "roles: {all: [{may: ['*']}]}",
            True,
        ),
        ("anonymous: ['*']", True),
        # The control API does not count certificates.
        ("assign: [{to: ['certificate:spiffe://plant/ada'], roles: [admin]}]", False),
        # People of providers.
        ("assign: [{to: ['oidc:plant/ada'], roles: [admin]}]", False),
        (f"{PROVIDER}\nassign: [{{to: ['oidc:plant/ada'], roles: [admin]}}]", True),
        (f"{PROVIDER}\nassign: [{{to: ['oidc:plant/ada'], roles: [operator]}}]", False),
        (f"{PROVIDER}\nassign: [{{to: ['oidc:plantation/ada'], roles: [admin]}}]", False),
        (f"{PROVIDER}\nassign: [{{to: ['oidc:*@b.example'], roles: [admin]}}]", True),
        (f"{PROVIDER}\nassign: [{{to: ['group:plant/ops'], roles: [admin]}}]", True),
        (f"{PROVIDER}\nassign: [{{to: ['group:ops'], roles: [admin]}}]", False),
        (f"{PROVIDER}\nassign: [{{to: ['group:p*/ops'], roles: [admin]}}]", True),
    ],
)
def test_who_may_administer(text: str, expected: bool) -> None:
    assert has_administrator(parse_access(parse_document(text, "access.yaml")), NOW) is expected
