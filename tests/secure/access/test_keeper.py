"""Credentials become grants; the file is followed, and a wrong one changes nothing."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from isochrone.errors import PermissionDenied, Unauthenticated
from isochrone.secure.access import keeper as module
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.permissions import HEALTH, INFERENCE, METADATA
from isochrone.secure.access.tokens import digest_of
from isochrone.settings.problems import SettingsError

ROLES = 'assign: [{to: ["token:a", "token:b"], roles: [caller]}]\n'


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, tokens: str, more: str = ROLES) -> None:
    """Another file under the same name, as an editor or Kubernetes leaves it."""
    new = path.with_suffix(".new")
    new.write_text(f"tokens: {{{tokens}}}\n{more}")
    os.replace(new, path)


def record(token: str, more: str = "") -> str:
    return f"{{sha256: {digest_of(token)}{more}}}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access.yaml"
    write(path, f"a: {record('iso_a')}, b: {record('iso_b', ', revoked: true')}")
    return path


def test_what_credentials_prove(path: Path) -> None:
    keeper = AccessKeeper(path)
    keeper.grant(b"Bearer iso_a").require(INFERENCE, "m")
    keeper.grant(b"bearer  iso_a ").require(INFERENCE, "m")
    for credential, words in (
        (b"Bearer iso_b", "token:b is revoked"),
        (b"Bearer iso_c", "not known here"),
        (b"Bearer ", "not known here"),
        (b"Basic iso_a", "expected 'Bearer TOKEN'"),
        (b"iso_a", "expected 'Bearer TOKEN'"),
        (b"Bearer " + b"x" * 9000, "longer than"),
        (b"Bearer \xff\xfe", "not known here"),
        (b"Bearer " + digest_of("iso_a").encode(), "not known here"),
    ):
        # A wrong credential is refused everywhere, where none at all may be enough.
        for permission in (INFERENCE, HEALTH):
            with pytest.raises(Unauthenticated, match=words):
                keeper.grant(credential).require(permission, "m")
    nobody = keeper.grant(b"")
    nobody.require(HEALTH)
    with pytest.raises(Unauthenticated, match="needs a credential"):
        nobody.require(INFERENCE, "m")


def test_a_change_of_the_file_reaches_grants_that_are_in_use(path: Path) -> None:
    keeper = AccessKeeper(path)
    first, second = keeper.grant(b"Bearer iso_a"), keeper.grant(b"Bearer iso_b")
    first.require(INFERENCE, "m")
    write(path, f"a: {record('iso_a', ', revoked: true')}, b: {record('iso_b')}")
    keeper.look()
    with pytest.raises(Unauthenticated, match="revoked"):
        first.require(INFERENCE, "m")
    second.require(INFERENCE, "m")
    write(path, f"a: {record('iso_a')}, b: {record('iso_b')}", "")
    keeper.look()
    with pytest.raises(PermissionDenied, match="has no role, and inference of model 'm' needs one"):
        first.require(INFERENCE, "m")


def test_a_wrong_file_changes_nothing_and_is_read_again(path: Path) -> None:
    keeper = AccessKeeper(path)
    grant = keeper.grant(b"Bearer iso_a")
    for text in ("tokens: [", "tokens: {}\nunknown: 1"):
        path.write_text(text)
        keeper.look()
        assert keeper.fault
        grant.require(INFERENCE, "m")
    path.unlink()
    keeper.look()
    grant.require(INFERENCE, "m")
    write(path, "", "")
    keeper.look()
    assert not keeper.fault
    with pytest.raises(Unauthenticated, match="not known"):
        grant.require(INFERENCE, "m")


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text("tokens: 1")
    with pytest.raises(SettingsError):
        AccessKeeper(tmp_path / "access.yaml")
    with pytest.raises(SettingsError, match="access file"):
        AccessKeeper(tmp_path / "none.yaml")


def test_a_token_expires_while_it_is_in_use(path: Path) -> None:
    clock = Clock()
    write(path, f"a: {record('iso_a', ', expires: 2027-01-15T08:00:10')}, b: {record('iso_b')}")
    keeper = AccessKeeper(path, clock)
    grant = keeper.grant(b"Bearer iso_a")
    grant.require(INFERENCE, "m")
    clock.now += 9
    keeper.look()
    grant.require(INFERENCE, "m")
    clock.now += 2
    keeper.look()
    with pytest.raises(Unauthenticated, match="token:a has expired"):
        grant.require(INFERENCE, "m")


def test_strangers_cannot_fill_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 100)
    keeper = AccessKeeper(path)
    kept = keeper.grant(b"Bearer iso_a")
    for number in range(5_000):
        keeper.grant(b"Bearer %d" % number)
        keeper.grant(b"").require(HEALTH)
    gc.collect()
    assert len(keeper._grants) <= 100
    assert len(keeper._in_use) <= 101
    # One that a head still has is renewed, although it is remembered no more.
    write(path, "", "")
    keeper.look()
    with pytest.raises(Unauthenticated):
        kept.require(METADATA, "m")


def test_models_that_a_caller_invents_are_not_all_remembered(path: Path) -> None:
    grant = AccessKeeper(path).grant(b"Bearer iso_a")
    for number in range(10_000):
        grant.require(INFERENCE, f"m{number}")
    assert len(grant._allowed) <= 4096


def test_errors_do_not_contain_the_token(path: Path) -> None:
    for credential in (b"Bearer iso_secret", b"Basic aXNvX3NlY3JldA==", b"Bearer iso_b"):
        with pytest.raises(Unauthenticated) as caught:
            AccessKeeper(path).grant(credential).require(INFERENCE, "m")
        assert credential.split()[1].decode() not in str(caught.value)
