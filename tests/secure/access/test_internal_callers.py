"""The fleet's own callers: what its key proves, what an access file cannot touch, and rules that come later."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import IsochroneError, PermissionDenied, Unauthenticated, Unavailable
from isochrone.secure.access.document import load_access
from isochrone.secure.access.identity import ANONYMOUS
from isochrone.secure.access.internal import CONTROLLER, GATEWAY, InternalCallers
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.permissions import (
    BUILT_IN,
    HEALTH,
    INFERENCE,
    METRICS,
    MODEL_REPOSITORY,
    PERMISSIONS,
    RECORDS,
    SHARED_MEMORY,
)
from isochrone.secure.access.tokens import digest_of
from isochrone.secure.fleet_key import FleetKey

CALLERS = InternalCallers(FleetKey(b"the key of this fleet"))
OTHERS = InternalCallers(FleetKey(b"the key of another fleet"))
CLOSED = f"""
tokens:
  a: {{sha256: {digest_of("iso_a")}}}
  stolen: {{sha256: {digest_of(CALLERS.gateway_token)}}}
roles:
  gateway: [{{may: ["*"]}}]
  all: [{{may: ["*"]}}]
assign:
  - {{to: ["token:*", "group:*", "oidc:*", "certificate:*"], roles: [all]}}
anonymous: [health, inference]
"""


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


def allowed(keeper: AccessKeeper, credential: bytes, attestation: bytes = b"") -> set[str]:
    found = set()
    for permission in PERMISSIONS:
        try:
            keeper.grant(credential, (), attestation).require(permission, "m")
            found.add(permission)
        except IsochroneError:
            pass
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access.yaml"
    path.write_text(CLOSED)
    return path


def test_an_access_file_can_neither_name_nor_change_them(path: Path) -> None:
    keeper = AccessKeeper(path, internal=CALLERS)
    gateway, controller = bearer(CALLERS.gateway_token), bearer(CALLERS.controller_token)
    assert keeper.grant(gateway).identity is GATEWAY
    assert keeper.grant(controller).identity is CONTROLLER
    # Not even what everybody may is added; a role 'gateway' of the file is another one.
    assert allowed(keeper, gateway) == set(BUILT_IN["gateway"])
    may = allowed(keeper, controller)
    assert {MODEL_REPOSITORY, METRICS, RECORDS, INFERENCE} <= may
    assert not may & {SHARED_MEMORY, "fleet-read", "fleet-change", "fleet-admin"}
    path.write_text("tokens: {}")
    keeper.look()
    assert allowed(keeper, gateway) == set(BUILT_IN["gateway"])
    assert allowed(keeper, controller) == may
    path.write_text('assign: [{to: ["fleet:gateway"], roles: [admin]}]')
    keeper.look()
    assert "to" in keeper.fault


def test_without_a_key_they_are_nobody(path: Path) -> None:
    for keeper in (AccessKeeper(path), AccessKeeper(path, internal=OTHERS)):
        with pytest.raises(Unauthenticated, match="not known here"):
            keeper.grant(bearer(CALLERS.controller_token)).require(HEALTH)
        with pytest.raises(Unauthenticated, match="only gateways"):
            keeper.grant(b"", (), CALLERS.attest(("robot",))).require(HEALTH)


def test_nothing_but_health_before_the_rules_are_known(path: Path) -> None:
    keeper = AccessKeeper(None, internal=CALLERS)
    grants = [keeper.grant(b""), keeper.grant(bearer("iso_a")), keeper.grant(b"", ("robot",))]
    for grant in grants:
        grant.require(HEALTH)
        with pytest.raises(Unavailable, match="have not been read"):
            grant.require(INFERENCE, "m")
        with pytest.raises(Unavailable):
            grant.require_for_any(INFERENCE)
    keeper.grant(bearer(CALLERS.controller_token)).require(MODEL_REPOSITORY)
    keeper.adopt(load_access(path))
    for grant in grants:
        grant.require(INFERENCE, "m")
    with pytest.raises(Unauthenticated):
        keeper.grant(bearer("iso_b")).require(HEALTH)


def test_the_caller_that_a_gateway_names_decides(path: Path) -> None:
    keeper = AccessKeeper(path, internal=CALLERS)
    attestation = CALLERS.attest(("spiffe://plant/robot", "CN=a,b;c"))
    identity = keeper.grant(b"", ("the gateway's own",), attestation).identity
    assert identity.name == "certificate:spiffe://plant/robot"
    assert identity.aliases == ("certificate:CN=a,b;c",)
    # The certificate of the gateway's own connection gives a caller without any nothing.
    assert keeper.grant(b"", ("the gateway's own",), CALLERS.attest(())).identity is ANONYMOUS
    assert allowed(keeper, b"", CALLERS.attest(())) == {HEALTH, INFERENCE}
    for credential in (bearer("iso_a"), bearer(CALLERS.gateway_token), b"nonsense"):
        with pytest.raises(Unauthenticated):
            keeper.grant(credential, (), attestation).require(HEALTH)
    path.write_text("anonymous: []")
    keeper.look()
    with pytest.raises(PermissionDenied, match="certificate:spiffe://plant/robot has no role"):
        keeper.grant(b"", (), attestation).require(INFERENCE, "m")
    with pytest.raises(Unauthenticated, match="needs a credential"):
        keeper.grant(b"", (), CALLERS.attest(())).require(INFERENCE, "m")


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=40), max_size=4).map(tuple))
def test_names_arrive_as_they_were_sent(names: tuple[str, ...]) -> None:
    attestation = CALLERS.attest(names)
    assert b"\r" not in attestation
    assert b"\n" not in attestation
    found = CALLERS.attested(attestation)
    assert found is not None
    assert (found is ANONYMOUS) is (not names)
    if names:
        assert (found.name, *found.aliases) == tuple(f"certificate:{name}" for name in names)
    assert OTHERS.attested(attestation) is None


@given(st.binary(max_size=200), st.integers(min_value=0), st.integers(0, 255))
def test_no_other_bytes_are_an_attestation(junk: bytes, at: int, byte: int) -> None:
    assert CALLERS.attested(junk) is None
    attestation = bytearray(CALLERS.attest(("a", "b")))
    if attestation[at % len(attestation)] != byte:
        attestation[at % len(attestation)] = byte
        assert CALLERS.attested(bytes(attestation)) is None


def test_while_a_key_is_exchanged_both_secrets_prove_the_same() -> None:
    old, new = b"o" * 32, b"n" * 32
    before, after = InternalCallers(FleetKey(old, new)), InternalCallers(FleetKey(new, old))
    for one, other in ((before, after), (after, before)):
        assert other.identify(digest_of(one.controller_token)) == CONTROLLER
        assert other.identify(digest_of(one.gateway_token)) == GATEWAY
        found = other.attested(one.attest(("spiffe://a",)))
        assert found is not None
        assert found.name == "certificate:spiffe://a"
    last = InternalCallers(FleetKey(new))
    assert last.identify(digest_of(before.controller_token)) is None
    assert last.attested(before.attest(())) is None
