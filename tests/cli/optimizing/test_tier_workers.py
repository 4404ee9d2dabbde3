"""Workers of two tiers of a fleet: which are taken, and what is said where none can be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from isochrone.cli.api_client import ApiClient
from isochrone.cli.optimizing import tier_workers
from isochrone.cli.optimizing.tier_workers import _tokens, worker_of, workers_of_tiers
from isochrone.control.api.messages import Status, StoreState, WorkerStatus
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.errors import FlagError, Unavailable
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.store.base import Put
from isochrone.store.opening import open_store, seal_of
from isochrone.store.seals import Seal

WORKER = WorkerStatus("w", "w:8000", "", "cpu", "edge", "cpu", "isochrone", False, 0.0)


def status_of(*workers: WorkerStatus, store: str = "") -> Status:
    return Status("plant", 1, 1, "c", StoreState(store, True, "", 1), (), workers, (), ())


def changed(**fields: object) -> WorkerStatus:
    return msgspec.structs.replace(WORKER, **fields)


def test_the_first_worker_of_the_tier_that_serves_is_taken() -> None:
    others = [changed(tier="core"), changed(kind="triton"), changed(draining=True), changed(fault="x")]
    chosen = changed(name="chosen")
    assert worker_of(status_of(*others, changed(standby=True), chosen, WORKER), "edge") is chosen
    with pytest.raises(FlagError, match=r"tier with a worker of Isochrone that serves \(tiers: core, edge\)"):
        worker_of(status_of(*others), "edge")
    with pytest.raises(FlagError, match=r"set pools.NAME.tier in fleet.yaml"):
        worker_of(status_of(changed(tier="")), "edge")


@pytest.mark.parametrize("given", ["edge", "edge,", "a,b,c"])
def test_two_tiers_are_needed(given: str) -> None:
    with pytest.raises(FlagError, match="two tiers, such as edge,core"):
        workers_of_tiers(given, "http://127.0.0.1:1")


def test_tokens_come_from_the_store(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'fleet.db'}"

    with pytest.raises(Unavailable, match="run the command on the controller's machine"):
        asyncio.run(_tokens(status_of(store=url), ["w"]))
    assert not list(tmp_path.iterdir())

    async def scenario() -> list[str]:
        store = open_store(url)
        record = WorkerRecord("w", "127.0.0.1", 1, 1, pool="cpu", control_token="secret")
        await store.transact([], [Put(Keys("plant").worker("w"), encode(record))])
        await store.close()
        with pytest.raises(Unavailable, match="worker gone has left the fleet"):
            await _tokens(status_of(store=url), ["gone"])
        return await _tokens(status_of(store=url), ["w"])

    assert asyncio.run(scenario()) == ["secret"]


def test_a_path_is_that_of_the_working_directory_or_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def scenario() -> None:
        store = open_store("sqlite:fleet.db")
        record = WorkerRecord("w", "127.0.0.1", 1, 1, pool="cpu", control_token="secret")
        await store.transact([], [Put(Keys("plant").worker("w"), encode(record))])
        await store.close()
        elsewhere = status_of(store="sqlite:/nowhere/fleet.db")
        for url in ("sqlite:fleet.db", "sqlite:~/fleet.db", f"sqlite://{tmp_path}/fleet.db"):
            assert await _tokens(status_of(store=url), ["w"]) == ["secret"]
            assert await _tokens(elsewhere, ["w"], url) == ["secret"]

    asyncio.run(scenario())


def test_another_file_at_that_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        store = open_store("sqlite:fleet.db")
        await store.transact([], [Put(Keys("other").worker("w"), b"x")])
        await store.close()
        with pytest.raises(Unavailable, match=rf"store sqlite:fleet.db \({tmp_path}/fleet.db\).*not the fleet's store"):
            await _tokens(status_of(store="sqlite:fleet.db"), ["w"])
        (tmp_path / "text.db").write_text("no database" * 1000)
        with pytest.raises(Unavailable, match="or give the store's URL with --store"):
            await _tokens(status_of(store="sqlite:text.db"), ["w"])

    asyncio.run(scenario())


def test_with_the_fleets_key_no_forged_record_is_believed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'fleet.db'}"
    (tmp_path / "fleet.key").write_text("k" * 32)
    seal = seal_of(read_fleet_key(tmp_path / "fleet.key"))
    record = WorkerRecord("w", "127.0.0.1", 1, 1, pool="cpu", control_token="secret")

    async def write(seal: Seal | None) -> None:
        store = open_store(url, seal=seal)
        await store.transact([], [Put(Keys("plant").worker("w"), encode(record))])
        await store.close()

    async def scenario() -> None:
        await write(seal)
        for reader in (seal, None):
            assert await _tokens(status_of(store=url), ["w"], url, reader) == ["secret"]
        await write(None)
        assert await _tokens(status_of(store=url), ["w"]) == ["secret"]
        with pytest.raises(Unavailable, match="it is not sealed with the fleet's key"):
            await _tokens(status_of(store=url), ["w"], url, seal)

    asyncio.run(scenario())


@pytest.mark.parametrize("tls", [False, True])
def test_workers_with_tls_are_called_over_tls(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tokens(*_: object) -> list[str]:
        return ["near", "far"]

    status = status_of(changed(tls=tls), changed(name="v", address="v:8000", tier="core"))
    monkeypatch.setattr(ApiClient, "get", lambda *_: status)
    monkeypatch.setattr(tier_workers, "_tokens", tokens)
    found = workers_of_tiers("edge,core", "http://127.0.0.1:1")
    assert [each.url for each in found] == [f"http{'s' if tls else ''}://w:8000", "http://v:8000"]
