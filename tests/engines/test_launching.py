"""Before anything is started: which fleet, one supervisor, free ports."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest

from isochrone.control.fleet.bundled.writing import write_bundled
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import BY_ADDRESS, GatewayRecord, WorkerRecord
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.view import View
from isochrone.engines import launching
from isochrone.engines.launching import (
    Launch,
    check_ports,
    launch_of_file,
    launch_of_state,
    record_of,
    single_supervisor,
)
from isochrone.errors import AlreadyExists, ConfigError
from isochrone.settings.problems import SettingsError
from isochrone.store.base import Delete, Put
from isochrone.store.opening import open_store


async def _record(launch: Launch) -> tuple[FleetRecord, FleetRecord | None]:
    store = open_store(launch.store_url)
    try:
        return await record_of(store, launch)
    finally:
        await store.close()


def _applied(launch: Launch) -> tuple[FleetRecord, FleetRecord | None]:
    return asyncio.run(_record(launch))


def test_without_a_file_the_bundled_fleet_is_written_and_goes_on_as_it_was_left(tmp_path: Path) -> None:
    launch = launch_of_state(tmp_path / "s")
    assert (tmp_path / "s" / "fleet.yaml").exists()
    assert launch.state == tmp_path / "s" / "state"
    first, before = _applied(launch)
    assert (first.generation, before, first.directory) == (1, None, str(tmp_path / "s"))
    # Somebody changes it: by the file it would be another one, but without it what was applied goes on.
    path = tmp_path / "s" / "fleet.yaml"
    path.write_text(path.read_text().replace("workers: 3", "workers: 2"))
    again, before = _applied(launch_of_state(tmp_path / "s"))
    assert again == before == first
    changed, before = _applied(launch_of_file(path))
    assert (changed.generation, before) == (2, first)
    assert changed.spec["pools"]["cpu"]["workers"] == 2
    # The same once more is no change.
    assert _applied(launch_of_file(path)) == (changed, changed)


def test_a_version_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    launch_of_state(tmp_path)
    path = tmp_path / "fleet.yaml"
    path.write_text(path.read_text().replace("version: 1", "version: 7"))
    with pytest.raises(SettingsError, match=r"models\.preprocess\.version: expected a version .* given 7"):
        _applied(launch_of_file(path))


def test_logs_go_where_they_are_wanted(tmp_path: Path) -> None:
    launch_of_state(tmp_path)
    assert launch_of_file(tmp_path / "fleet.yaml", tmp_path / "here").state == tmp_path / "here"
    path = tmp_path / "fleet.yaml"
    path.write_text(path.read_text().replace('"sqlite:state/fleet.db"', '"etcd:http://127.0.0.1:1"'))
    assert launch_of_file(path).state == tmp_path / "state"


def test_only_one_supervisor_has_a_state(tmp_path: Path) -> None:
    refused = pytest.raises(AlreadyExists, match=f"process {os.getpid()};")
    with single_supervisor(tmp_path / "s"), refused, single_supervisor(tmp_path / "s"):
        raise AssertionError("two at once")
    with single_supervisor(tmp_path / "s"):
        pass


def test_a_state_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = "--state: expected a directory that can be written"
    with pytest.raises(ConfigError, match=message), single_supervisor(tmp_path / "file" / "s"):
        pass
    with pytest.raises(ConfigError, match=message):
        launch_of_state(tmp_path / "file" / "s")


def test_a_port_that_is_taken_names_the_key_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_PORT_SECONDS", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        spec = {
            "name": "plant",
            "control": {"listen": "127.0.0.1:0"},
            "gateways": {"edge": {"listen": f"127.0.0.1:{port}", "metrics_port": -1}},
        }
        message = rf"fleet\.yaml: gateways\.edge\.listen: expected a free port, given 127\.0\.0\.1:{port}, which"
        with pytest.raises(ConfigError, match=message):
            asyncio.run(check_ports(FleetRecord(1, "", spec), "fleet.yaml"))
    asyncio.run(check_ports(FleetRecord(1, "", spec), "fleet.yaml"))


def test_an_address_of_another_machine_is_told_as_such() -> None:
    spec = {"name": "plant", "control": {"listen": "192.0.2.1:8003"}}
    with pytest.raises(ConfigError, match=r"control\.listen: expected an address of this machine, given 192\.0\.2\.1"):
        asyncio.run(check_ports(FleetRecord(1, "", spec), "fleet.yaml"))


def test_all_taken_ports_are_told_at_once_and_nothing_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_PORT_SECONDS", 0.0)
    path = write_bundled(tmp_path)
    store = open_store(launch_of_file(path).store_url)

    async def refused(text: str) -> str:
        path.write_text(text)
        with pytest.raises(SettingsError) as caught:
            await record_of(store, launch_of_file(path), check=check_ports)
        assert View(Keys("demo"), (await store.list(Keys("demo").prefix)).entries).fleet is None
        return str(caught.value)

    async def run() -> None:
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
                each.listen(1)
            ports = [each.getsockname()[1] for each in (one, other)]
            text = path.read_text().replace("127.0.0.1:8003", f"127.0.0.1:{ports[0]}")
            said = await refused(text.replace(":8000", f":{ports[1]}"))
        assert f"control.listen: expected a free port, given 127.0.0.1:{ports[0]}, which another process has" in said
        assert f":{ports[1]}, which another process has" in said
        assert "gateways.gw.listen: expected a free port" in said
        await store.close()

    asyncio.run(run())


def test_the_engine_is_part_of_the_record(tmp_path: Path) -> None:
    async def on(engine: str, launch: Launch) -> FleetRecord:
        store = open_store(launch.store_url)
        try:
            return (await record_of(store, launch, engine=engine))[0]
        finally:
            await store.close()

    launch = launch_of_state(tmp_path)
    first = asyncio.run(on("local", launch))
    moved = asyncio.run(on("ray", launch))
    assert (moved.engine, moved.generation, moved.spec) == ("ray", first.generation, first.spec)
    assert _applied(launch)[0].engine == "local"
    assert asyncio.run(on("ray", launch_of_file(tmp_path / "fleet.yaml"))).engine == "ray"


@pytest.mark.parametrize("applies", [False, True])
def test_the_engine_of_a_fleet_that_runs_stays(tmp_path: Path, applies: bool) -> None:
    keys = Keys("demo")
    launch = launch_of_state(tmp_path)
    if applies:
        path = tmp_path / "fleet.yaml"
        path.write_text(path.read_text().replace("workers: 3", "workers: 2"))
    later = launch_of_file(tmp_path / "fleet.yaml") if applies else launch
    store = open_store(launch.store_url)
    worker, gateway = WorkerRecord("cpu-1", "10.0.0.7", 1, 2, pool="cpu"), GatewayRecord("gw", "10.0.0.7", 8000)

    async def run() -> None:
        first, _ = await record_of(store, launch, engine="ray")
        for key, record, names in (
            (keys.worker("cpu-1"), encode(worker), "cpu-1"),
            (keys.gateway("gw"), encode(gateway), "gw"),
        ):
            await store.transact((), (Put(key, record),))
            again = "--engine ray'; if that is gone, start it again, and then stop it"
            message = rf"--engine: expected ray, which runs {names} of this fleet .*{again}\), given local"
            with pytest.raises(ConfigError, match=message):
                await record_of(store, later)
            assert View(keys, (await store.list(keys.prefix)).entries).fleet == first
            await store.transact((), (Delete(key),))
        # A server at an address runs on no engine.
        outside = msgspec.structs.replace(worker, incarnation=BY_ADDRESS)
        await store.transact((), (Put(keys.worker("cpu-1"), encode(outside)),))
        assert (await record_of(store, later))[0].engine == "local"
        await store.close()

    asyncio.run(run())
