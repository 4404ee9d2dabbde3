"""Access files: what they mean, and that every error names its key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from isochrone.secure.access.document import load_access, moment, parse_access
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.permissions import FLEET_ADMIN, HEALTH, INFERENCE, METADATA, PERMISSIONS
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.settings.documents import parse_document
from isochrone.settings.problems import SettingsError

DIGEST = digest_of("iso_a")


def test_a_file_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(
        f"""
tokens:
  robots: {{sha256: {DIGEST}, expires: 2027-06-01, groups: [plant]}}
roles:
  vision: [{{may: [inference], models: ["vision-*"], priority: 2}}, {{may: [metadata]}}]
assign:
  - {{to: ["group:plant"], roles: [vision]}}
  - {{to: ["oidc:*@example.org", "certificate:spiffe://plant/*"], roles: [reader, caller]}}
anonymous: []
"""
    )
    access = load_access(path)
    record = access.tokens[DIGEST]
    assert (record.name, record.groups, record.revoked) == ("token:robots", {"plant"}, False)
    assert record.expires == datetime(2027, 6, 1, 23, 59, 59, 999999, UTC).timestamp()
    robots = Identity(record.name, record.groups)
    assert access.policy.decide(robots, INFERENCE, "vision-1", 2).allowed
    assert not access.policy.decide(robots, INFERENCE, "vision-1", 1).allowed
    assert not access.policy.decide(robots, INFERENCE, "audio").allowed
    assert access.policy.decide(robots, METADATA, "audio").allowed
    assert access.policy.decide(Identity("oidc:ann@example.org"), INFERENCE, "audio").allowed
    assert not access.policy.decide(Identity("oidc:ann@example.org.evil"), INFERENCE, "audio").allowed
    assert not any(access.policy.decide(ANONYMOUS, permission).allowed for permission in PERMISSIONS)


def test_an_empty_file_leaves_health_open_and_nothing_else() -> None:
    policy = parse_access(parse_document("tokens: {}", "access.yaml")).policy
    allowed = {each for each in PERMISSIONS if policy.decide(ANONYMOUS, each).allowed}
    assert allowed == {HEALTH}
    assert policy.decide(Identity("token:any"), HEALTH).allowed


def test_a_star_gives_every_permission() -> None:
    text = 'assign: [{to: ["group:g"], roles: [all]}]\nroles: {all: [{may: ["*"]}]}'
    policy = parse_access(parse_document(text, "access.yaml")).policy
    assert policy.decide(Identity("x", frozenset("g")), FLEET_ADMIN).allowed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens: {a: {sha256: abc}}", "tokens.a.sha256: expected 64 hexadecimal digits"),
        (f"tokens: {{a: {{sha256: {DIGEST}}}, b: {{sha256: {DIGEST}}}}}", "that of 'a'"),
        (f"tokens: {{a: {{sha256: {DIGEST}, expires: soon}}}}", "tokens.a.expires: expected a date as in 2027-06-01"),
        (f"tokens: {{'a b': {{sha256: {DIGEST}}}}}", "expected a name of letters"),
        ("tokens: {a: {}}", "tokens.a.sha256"),
        ("roles: {r: [{may: [infer]}]}", "roles.r[0].may[0]"),
        ("roles: {r: [{may: [inference], models: []}]}", "roles.r[0].models"),
        ("roles: {r: [{may: [inference], priority: -1}]}", "roles.r[0].priority"),
        ("roles: {anonymous: [{may: [inference]}]}", "another name"),
        ('assign: [{to: ["group:g"], roles: [calller]}]', "did you mean 'caller'?"),
        ("assign: [{to: [robots], roles: [caller]}]", "a caller that begins with token:"),
        ('assign: [{to: ["token:robots"], roles: [caller]}]', "expected a token of this file"),
        ('assign: [{to: ["*"], roles: [caller]}]', "a caller that begins with token:"),
        ("anonymous: [everything]", "anonymous[0]"),
        ("token: {}", "did you mean 'tokens'?"),
        ("[]", "a mapping with tokens, roles and assign"),
        ("", "a mapping with tokens, roles and assign"),
        ("a: [", "not valid YAML"),
    ],
)
def test_errors_name_the_key(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_access(parse_document(text, "access.yaml"))
    assert "access.yaml" in str(caught.value)
    assert words in str(caught.value)


def test_all_errors_at_once() -> None:
    text = "tokens:\n  a: {sha256: x}\nroles:\n  r: [{may: [nix]}]\nanonymous: [nothing]\n"
    with pytest.raises(SettingsError) as caught:
        parse_access(parse_document(text, "access.yaml"))
    assert [error.where for error in caught.value.errors] == ["access.yaml:2", "access.yaml:4", "access.yaml:5"]


def test_moments() -> None:
    assert moment("") is None
    assert moment("2027-06-01T12:00:00") == datetime(2027, 6, 1, 12, tzinfo=UTC).timestamp()
    assert moment("2027-06-01T12:00:00+02:00") == datetime(2027, 6, 1, 10, tzinfo=UTC).timestamp()


def test_tokens_are_long_and_differ() -> None:
    made = {new_token() for _ in range(1000)}
    assert len(made) == 1000
    assert all(each.startswith("iso_") and len(each) >= 46 for each in made)


def test_identities_of_tenants() -> None:
    text = f"""
tokens: {{robots: {{sha256: {DIGEST}}}}}
tenants:
  plant-a: ["token:robots", "group:plant/a"]
  plant-b: ["group:plant/*"]
"""
    policy = parse_access(parse_document(text, "access.yaml")).policy
    for identity, account in (
        (Identity("token:robots", frozenset({"plant/b"})), "tenant:plant-a"),
        (Identity("oidc:plant/ada", frozenset({"plant/a", "plant/b"})), "tenant:plant-a"),
        (Identity("oidc:plant/bob", frozenset({"plant/b"})), "tenant:plant-b"),
        (Identity("oidc:plant/eve"), "oidc:plant/eve"),
        (ANONYMOUS, "anonymous"),
    ):
        assert policy.account_of(identity) == account


@pytest.mark.parametrize(
    ("tenants", "error"),
    [
        ('{"a b": ["token:robots"]}', "tenants.a b: expected a name of letters"),
        ("{a: [robots]}", r"tenants.a\[0\]: expected a caller that begins with"),
        ('{a: ["token:robot"]}', r"tenants.a\[0\]: .*did you mean 'token:robots'"),
    ],
)
def test_tenants_that_nobody_belongs_to(tenants: str, error: str) -> None:
    text = f"tokens: {{robots: {{sha256: {DIGEST}}}}}\ntenants: {tenants}"
    with pytest.raises(SettingsError, match=error):
        parse_access(parse_document(text, "access.yaml"))
