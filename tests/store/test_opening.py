"""URLs of stores: accepted ones, and the errors of others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from isochrone.errors import ConfigError
from isochrone.store.base import Put, Store
from isochrone.store.etcd.address import PASSWORD_VARIABLE, EtcdAddress, read_address, split_password
from isochrone.store.etcd.store import EtcdStore
from isochrone.store.opening import open_store, seal_of


def test_a_relative_path_is_of_the_directory(tmp_path: Path) -> None:
    async def read(store: Store) -> None:
        assert (await store.list("")).revision == 0
        await store.close()

    asyncio.run(read(open_store("sqlite:deep/fleet.db", tmp_path)))
    assert (tmp_path / "deep" / "fleet.db").exists()
    asyncio.run(read(open_store(f"sqlite://{tmp_path}/absolute.db")))
    assert (tmp_path / "absolute.db").exists()


def test_etcd_is_not_asked_before_it_is_used() -> None:
    store = open_store("etcd:http://user:secret@h1:2379,http://h2")
    assert isinstance(store.inner, EtcdStore)
    assert store.url == "etcd:http://h1:2379,http://h2:2379"


@pytest.mark.parametrize("url", ["", "sqlite:", "etcd:", "redis://h", "fleet.db", "SQLITE:x"])
def test_another_url_is_told_what_is_accepted(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected sqlite:PATH, or etcd:http://HOST:2379"):
        open_store(url)


def test_all_of_an_etcd_address() -> None:
    url = "etcd:https://us%40er:p%3Aw@h1:1,https://[::1]:2?ca=/c.pem&cert=d.pem&key=k.pem"
    address = read_address(url)
    assert address == EtcdAddress(("https://h1:1", "https://[::1]:2"), "us@er", "p:w", "/c.pem", "d.pem", "k.pem")
    assert "p:w" not in address.shown


@pytest.mark.parametrize(
    "url", ["etcd:h1:2379", "etcd:http://", "etcd:http://h:x", "etcd:http://h/v3", "etcd:http://h,"]
)
def test_a_wrong_endpoint_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store: url: expected etcd:http://HOST:2379"):
        read_address(url)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async def error_of(query: str) -> str:
        store = open_store(f"etcd:https://127.0.0.1:1?{query}")
        try:
            with pytest.raises(ConfigError) as raised:
                await store.list("")
        finally:
            await store.close()
        return str(raised.value)

    none, text = tmp_path / "none.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    for option in ("ca", "cert", "key"):
        expected = f"store: url: expected a file that can be read after {option}=, given {none} (No such file"
        assert asyncio.run(error_of(f"{option}={none}")).startswith(expected)
    for option in ("ca", "cert"):
        expected = f"store: url: expected PEM files of certificates after ca=, cert= and key=, given {text} ("
        assert asyncio.run(error_of(f"{option}={text}")).startswith(expected)


def test_a_wrong_option_is_named_and_a_password_is_not() -> None:
    with pytest.raises(ConfigError, match=r"options ca, cert, key after the .*, given password"):
        read_address("etcd:http://h?password=1")
    with pytest.raises(ConfigError) as raised:
        read_address("etcd:ftp://user:secret@h")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("etcd:http://u:p%40w@h1:1,https://h2?ca=/a@b:c.pem", ("etcd:http://u@h1:1,https://h2?ca=/a@b:c.pem", "p@w")),
        ("etcd:http://h1,http://u:p@h2", ("etcd:http://h1,http://u@h2", "p")),
        ("etcd:http://u@h1", ("etcd:http://u@h1", "")),
        ("etcd:http://[::1]:2379", ("etcd:http://[::1]:2379", "")),
        ("sqlite:///srv/a:b@c.db", ("sqlite:///srv/a:b@c.db", "")),
        ("ectd:http://u:p@h1", ("ectd:http://u@h1", "p")),
    ],
)
def test_a_password_is_taken_out_of_a_url(url: str, expected: tuple[str, str]) -> None:
    assert split_password(url) == expected


def test_the_password_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "p:w@")
    assert read_address("etcd:http://u@h1,http://h2").password == "p:w@"
    assert read_address("etcd:http://u:own@h1").password == "own"
    assert read_address("etcd:http://h1").password == ""
    assert "own" not in repr(read_address("etcd:http://u:own@h1"))


def test_a_wrong_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigError) as raised:
        open_store("ectd:http://user:secret@h")
    assert "secret" not in str(raised.value)


def test_a_sqlite_file_is_its_owners_alone(tmp_path: Path) -> None:
    async def write() -> None:
        store = open_store(f"sqlite:{tmp_path}/fleet.db")
        await store.transact([], [Put("a", b"1")])
        modes.update(os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path))
        await store.close()

    modes: set[int] = set()
    asyncio.run(write())
    assert modes == {0o600}


@pytest.mark.parametrize("url", ["etcd:http:/\n/u:t@a", "etcd:http://u:t@a\r", "etcd:ht\ttp://u:t@a"])
def test_a_url_in_which_a_password_could_not_be_seen_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="printable"):
        read_address(url)


def test_what_is_accepted_without_a_seal_is_a_question_only_with_a_key() -> None:
    with pytest.raises(ConfigError, match="--accept-unsealed: expected --fleet-key beside it"):
        seal_of(None, accepts_unsealed=True)
    assert not seal_of(None).has_key
