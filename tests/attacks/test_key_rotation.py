"""Keys of a provider are replaced under load, and the provider is away or confused: no valid token is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded_servers import inference
from provider_site import PATH, Site, provider_site

from caller_load import token_load
from gateway_process import StartGateway
from isochrone.secure.access.held import MOST_HELD
from issued_tokens import key
from server_process import StartServer
from watching import wait_for

FIRST, SECOND, THIRD = (key(name, "EC", "P-256") for name in ("first", "second", "third"))


@pytest.fixture
def site(tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway) -> Iterator[Site]:
    with provider_site(tmp_path, server_factory, gateway_factory, FIRST) as made:
        yield made


def test_a_key_that_is_published_and_then_used_is_accepted_from_its_first_token_on(site: Site) -> None:
    """Servers fetch keys every five minutes: they have not seen the new key when the first token with it comes."""
    signer = FIRST
    before = site.provider.fetches
    with token_load(site.servers, lambda: site.token(signer)) as load:
        load.more()
        site.provider.keys = (FIRST, SECOND)
        signer = SECOND
        load.more()
        # One fetch for each server, however many tokens came at once.
        assert site.provider.fetches - before == 2
        # The old key is withdrawn, and nobody asks for it.
        site.provider.keys = (SECOND,)
        load.more()
    assert load.failures == []
    assert sum(load.answered.values()) > 8 * 3 * 4


@pytest.mark.parametrize("broken", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n<html>502", b"\x16\x03garbage"])
def test_a_provider_that_is_away_or_confused_costs_no_valid_token(
    site: Site, broken: bytes, tried: Counter[str]
) -> None:
    with token_load(site.servers, lambda: site.token()) as load:
        load.more()
        site.provider.broken = broken
        site.fault()
        tried["a provider that is away, or answers garbage → valid tokens accepted meanwhile"] += 1
        load.more()
        # It comes back with another key.
        site.provider.keys = (FIRST, SECOND)
        site.provider.broken = None
        site.recovered()
        load.more()
        for server in site.servers.values():
            assert site.status(site.token(SECOND), server) == 200
    assert load.failures == []


def test_a_key_that_is_used_at_once_after_strangers_is_accepted_with_the_next_fetch(site: Site) -> None:
    """A stranger's token has caused the fetch that tokens may cause in ten seconds. The refused token is sent again."""
    assert site.status(site.token(key("unknown", "EC", "P-256"))) == 401
    site.provider.keys = (FIRST, SECOND)
    token = site.token(SECOND)
    assert site.status(token) == 401
    wait_for(lambda: site.status(token) == 200)
    assert site.status(site.token(FIRST)) == 200


def test_a_provider_that_is_slow_holds_up_few_callers_and_not_for_long(site: Site, tried: Counter[str]) -> None:
    """Callers with known keys are answered meanwhile, and those that give up leave nothing behind."""
    site.provider.answers.clear()
    connections = [http.client.HTTPConnection(site.worker.http_url, timeout=60) for _ in range(MOST_HELD + 40)]
    body = json.dumps(inference())
    with contextlib.ExitStack() as stack:
        for connection in connections:
            stack.callback(connection.close)
            token = site.token(key("unknown", "EC", "P-256"))
            connection.request("POST", PATH, body, {"authorization": f"Bearer {token}"})
        tried["tokens with unknown keys while the provider is silent"] += len(connections)
        # The first of them go away while they wait.
        for connection in connections[:20]:
            connection.close()
        assert site.status(site.token()) == 200
        statuses = [connection.getresponse().status for connection in connections[20:]]
        assert set(statuses) == {401}
        # Nobody waits any more; the fetch does.
        assert site.status(site.token()) == 200
        site.provider.answers.set()
    assert site.status(site.token()) == 200


def test_a_token_with_a_new_key_is_answered_when_its_key_comes(site: Site) -> None:
    site.provider.answers.clear()
    site.provider.keys = (FIRST, SECOND)
    found: list[int] = []
    caller = threading.Thread(target=lambda: found.append(site.status(site.token(SECOND))))
    caller.start()
    assert site.status(site.token()) == 200
    site.provider.answers.set()
    caller.join()
    assert found == [200]
