"""The command lines of processes that share one gateway's port."""

from __future__ import annotations

from isochrone.cli.processes.gateway import without_password
from isochrone.store.etcd.address import PASSWORD_VARIABLE


def test_they_do_not_show_the_stores_password() -> None:
    url = "etcd:http://root:s%3Acret@h1:2379,http://h2:2379"
    for words in (["gateway", "--store", url, "--name", "g"], ["gateway", f"--store={url}"]):
        shown, variables = without_password(words, url)
        assert "cret" not in " ".join(shown)
        assert "http://root@h1:2379,http://h2:2379" in " ".join(shown)
        assert variables == {PASSWORD_VARIABLE: "s:cret"}


def test_a_store_without_a_password_stays_as_it_is() -> None:
    words = ["gateway", "--store", "sqlite:fleet.db"]
    assert without_password(words, "sqlite:fleet.db") == (words, {})
