"""The file of logins: of this user alone, whole or absent."""

from __future__ import annotations

import multiprocessing
import stat
from pathlib import Path

import pytest

from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.kept_logins import KeptLogin, KeptLogins, has_logins

LOGIN = KeptLogin("https://login.example", "cli", "fleet", "ada", "Ada", "token", 1.8e9, "refresh")


@pytest.fixture
def kept(tmp_path: Path) -> KeptLogins:
    found = KeptLogins(tmp_path / "config" / "logins.json")
    with found.locked():
        found.put("https://a:443", LOGIN)
    return found


def test_a_login_is_kept_for_this_user_alone(kept: KeptLogins) -> None:
    assert kept.read() == {"https://a:443": LOGIN}
    assert kept.get("https://b:443") is None
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700
    assert {each.name for each in kept.path.parent.iterdir()} == {"logins.json", "logins.lock"}


def test_a_login_is_removed(kept: KeptLogins) -> None:
    with kept.locked():
        kept.put("https://b:443", LOGIN)
        kept.put("https://a:443", None)
        kept.put("https://c:443", None)
    assert list(kept.read()) == ["https://b:443"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_read(kept: KeptLogins, mode: int) -> None:
    kept.path.chmod(mode)
    with pytest.raises(LoginFailed, match="others can read it; run chmod 600"):
        kept.read()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"https://a": {}}', b"\xff"])
def test_a_damaged_file(kept: KeptLogins, content: bytes) -> None:
    kept.path.write_bytes(content)
    with pytest.raises(LoginFailed, match="damaged; remove it and log in again"):
        kept.read()


def test_a_link_is_not_followed(kept: KeptLogins) -> None:
    link = kept.path.with_name("link.json")
    link.symlink_to(kept.path)
    with pytest.raises(LoginFailed):
        KeptLogins(link).read()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoginFailed), KeptLogins(tmp_path / "file" / "logins.json").locked():
        pass


def test_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert KeptLogins().path == tmp_path / "isochrone" / "logins.json"
    assert not has_logins()
    with KeptLogins().locked():
        KeptLogins().put("https://a:443", LOGIN)
    assert has_logins()
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert KeptLogins().path == Path("/home/ada/.config/isochrone/logins.json")


def _count(path: Path, times: int) -> None:
    kept = KeptLogins(path)
    for _ in range(times):
        with kept.locked():
            last = kept.get("https://count:443")
            number = int(last.token) if last is not None else 0
            kept.put("https://count:443", KeptLogin("i", "c", "a", "s", "n", str(number + 1), 0.0))


def test_processes_change_it_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "logins.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(path, 50)) for _ in range(3)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
        each.close()
    found = KeptLogins(path).get("https://count:443")
    assert found is not None
    assert found.token == "150"
