"""Keys on disk: read by the server that wrote them, and never from a file that another user can write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isochrone.secure.oidc.kept_keys import KeptKeys, NotKept
from issued_tokens import ISSUER, NOW, key, public


@pytest.fixture
def kept(tmp_path: Path) -> KeptKeys:
    found = KeptKeys(tmp_path / "keys.json", ISSUER)
    found.write(public(key("rsa")), NOW)
    return found


def test_keys_are_read_again_with_their_age(kept: KeptKeys) -> None:
    found = kept.read(NOW + 50)
    assert (len(found), found.fetched) == (1, NOW)


def test_a_file_of_the_future_is_as_old_as_now(kept: KeptKeys) -> None:
    assert kept.read(NOW - 100).fetched == NOW - 100


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotKept) as missing:
        KeptKeys(tmp_path / "keys.json", ISSUER).read(NOW)
    assert missing.value.absent


@pytest.mark.parametrize("mode", [0o622, 0o620, 0o666, 0o602])
def test_a_file_that_others_may_write(kept: KeptKeys, mode: int) -> None:
    kept.path.chmod(mode)
    with pytest.raises(NotKept, match="can be written by others; remove it"):
        kept.read(NOW)


def test_a_link(kept: KeptKeys, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(kept.path)
    with pytest.raises(NotKept):
        KeptKeys(link, ISSUER).read(NOW)


def test_keys_of_another_issuer(kept: KeptKeys) -> None:
    with pytest.raises(NotKept, match="another issuer"):
        KeptKeys(kept.path, "https://other.example").read(NOW)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "{",
        json.dumps({"issuer": ISSUER, "fetched": "now", "jwks": {}}),
        json.dumps({"issuer": ISSUER, "fetched": NOW, "jwks": []}),
        json.dumps({"issuer": ISSUER, "fetched": NOW, "jwks": {"keys": []}}),
        json.dumps({"issuer": ISSUER, "fetched": NOW}),
    ],
)
def test_damaged_files(kept: KeptKeys, content: str) -> None:
    kept.path.write_text(content)
    with pytest.raises(NotKept):
        kept.read(NOW)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="No such file"):
        KeptKeys(tmp_path / "missing" / "keys.json", ISSUER).write({}, NOW)
