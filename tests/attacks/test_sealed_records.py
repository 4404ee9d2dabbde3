"""Somebody who may write to the store of a fleet, and does not have the fleet's key."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from guarded_servers import ask
from sealed_fleet import KEYS, MODEL, NAME, SealedFleet, sealed_fleet, wait_until, write_key

from isochrone.control.state.codec import decode, encode
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord, FleetRecord
from isochrone.store.seals import NO_SEAL, WRONG_SEAL
from up_process import ISOCHRONE, SECONDS, isochrone


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SealedFleet]:
    with sealed_fleet(tmp_path_factory.mktemp("sealed")) as found:
        yield found


@contextmanager
def process(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file, subprocess.Popen([*ISOCHRONE, *words], stdout=file, stderr=file) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()


def member_flags(fleet: SealedFleet, name: str) -> tuple[str, ...]:
    return ("--store", f"sqlite:{fleet.directory / 'state' / 'fleet.db'}", "--fleet", NAME, "--name", name)


def test_every_record_of_the_fleet_is_sealed(fleet: SealedFleet) -> None:
    assert fleet.faults() == {}
    opened = fleet.read(fleet.key)
    assert {KEYS.epoch, KEYS.fleet, KEYS.leader, KEYS.worker("cpu-1"), KEYS.gateway("front")} <= opened.keys()
    assert [key for key, entry in opened.items() if not entry.is_sealed] == []


@pytest.mark.parametrize("key", ["none", "another"])
def test_a_rogue_worker_gets_no_request(fleet: SealedFleet, tried: Counter[str], tmp_path: Path, key: str) -> None:
    name = f"rogue-{key}"
    flags: tuple[str, ...] = ()
    if key == "another":
        write_key(tmp_path / "other.key")
        flags = ("--fleet-key", str(tmp_path / "other.key"))
    words = ("serve", str(fleet.directory / "models"), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    loading = ("--model-control-mode", "explicit", "--load-model", MODEL, "--pool", "cpu")
    with process(*words, *loading, *member_flags(fleet, name), *flags, log=tmp_path / "rogue.log"):
        wait_until(lambda: f"workers/{name}" in fleet.faults())
        assert fleet.faults()[f"workers/{name}"] == (NO_SEAL if key == "none" else WRONG_SEAL)
        # As it is in the store, for whoever does not check seals.
        value = fleet.read()[KEYS.worker(name)].value
        record = decode(value[: value.rindex(b"}") + 1], WorkerRecord)
        for _ in range(50):
            assert fleet.version() == "1"
            tried["a rogue worker in the fleet's store: requests"] += 1
        code, _, body = ask(record.port, "GET", f"/v2/models/{MODEL}/stats")
        assert code == 200, body
        assert json.loads(body)["model_stats"][0]["inference_count"] == 0
        assert name not in {each["name"] for each in fleet.status()["workers"]}
        code, _, body = ask(fleet.control, "POST", f"/v1/drain/{name}")
        assert code in (400, 404, 405), body
    wait_until(lambda: f"workers/{name}" not in fleet.faults())


def test_a_rogue_gateway_is_not_waited_for(fleet: SealedFleet, tried: Counter[str], tmp_path: Path) -> None:
    words = ("gateway", "--listen", "127.0.0.1:0", "--metrics-port", "-1")
    with process(*words, *member_flags(fleet, "rogue-gateway"), log=tmp_path / "rogue.log"):
        wait_until(lambda: "gateways/rogue-gateway" in fleet.faults())
        tried["a rogue gateway in the fleet's store"] += 1
        assert "known-gateways/rogue-gateway" in fleet.faults()
        assert {each["name"] for each in fleet.status()["gateways"]} == {"front"}
        # A strict switch waits for every gateway of the fleet, and for no other.
        version = "2" if fleet.version() == "1" else "1"
        fleet.command("rollout", "start", f"{MODEL}={version}")
        wait_until(lambda: fleet.version() == version)
        fleet.command("rollout", "rollback", MODEL)
        wait_until(lambda: fleet.version() != version)
    fleet.write({KEYS.known_gateway("rogue-gateway"): b"1"}, fleet.key)
    fleet.command("forget", "rogue-gateway")
    wait_until(lambda: not fleet.faults())


def test_a_forged_epoch_is_not_followed(fleet: SealedFleet, tried: Counter[str], tmp_path: Path) -> None:
    entries = fleet.read()
    genuine = decode(fleet.read(fleet.key)[KEYS.epoch].value, EpochRecord)
    served = genuine.models[MODEL].version
    other = {MODEL: msgspec.structs.replace(genuine.models[MODEL], version="2" if served == "1" else "1", epoch=99)}
    forged = encode(EpochRecord(99, other))
    foreign = write_key(tmp_path / "other.key")
    before = fleet.status()["epoch"]
    # Without a seal, with one of another key, with that of another record, with its own that was cut or changed.
    fleet.write({KEYS.epoch: forged})
    wait_until(lambda: fleet.status()["epoch"] not in (before, 99))
    for value in (
        forged + entries[KEYS.epoch].value[-75:],
        entries[KEYS.epoch_copy].value,
        entries[KEYS.fleet].value,
        entries[KEYS.epoch].value[:-1],
        entries[KEYS.epoch].value.replace(b'"epoch":', b'"epoch":1', 1),
    ):
        before = fleet.status()["epoch"]
        fleet.write({KEYS.epoch: value})
        assert fleet.version() == served
        # The leader has restored it from the copy, under a new number.
        wait_until(lambda: before < fleet.status()["epoch"] < 99)  # noqa: B023
        tried["forged epochs in the fleet's store"] += 1
    fleet.write({KEYS.epoch: forged}, foreign)
    assert fleet.version() == served
    wait_until(lambda: KEYS.epoch.removeprefix(KEYS.prefix) not in fleet.faults())
    told = fleet.command("events")
    assert "record cannot be read" in told
    assert WRONG_SEAL in " ".join(told.split()) or NO_SEAL in " ".join(told.split()), told
    fleet.command("rollout", "start", f"{MODEL}={other[MODEL].version}")
    wait_until(lambda: fleet.version() == other[MODEL].version)
    fleet.command("rollout", "rollback", MODEL)
    wait_until(lambda: fleet.version() == served)


def test_an_epoch_and_its_copy_forged_wait_for_a_user(fleet: SealedFleet, tried: Counter[str]) -> None:
    served = fleet.version()
    forged = encode(EpochRecord(99, {MODEL: Assignment("2" if served == "1" else "1", pools=("cpu",))}))
    fleet.write({KEYS.epoch: forged, KEYS.epoch_copy: forged})
    tried["an epoch forged with its copy"] += 1
    wait_until(lambda: {"epoch", "epoch-copy"} <= fleet.faults().keys())
    assert NO_SEAL in isochrone("status", "--api", f"http://127.0.0.1:{fleet.control}").stdout
    assert {fleet.version() for _ in range(20)} == {served}
    # Not even offers of the forger's count.
    fleet.write({KEYS.served_epoch("rogue"): forged})
    wait_until(lambda: KEYS.served_epoch("front") in fleet.read())
    fleet.command("restore-epoch", "--yes")
    wait_until(lambda: not fleet.faults())
    assert {fleet.version() for _ in range(20)} == {served}
    assert fleet.status()["epoch"] < 99


def test_an_earlier_epoch_put_back_is_not_followed(fleet: SealedFleet, tried: Counter[str]) -> None:
    """Its seal is genuine: it was the fleet's own, with a version that has been replaced since."""
    earlier, before = fleet.read(), fleet.version()
    fleet.command("rollout", "start", f"{MODEL}={'2' if before == '1' else '1'}")
    wait_until(lambda: fleet.version() != before)
    served, epoch = fleet.version(), fleet.status()["epoch"]
    wait_until(lambda: fleet.status()["gateways"][0]["epoch"] == epoch)
    fleet.write({KEYS.epoch: earlier[KEYS.epoch].value})
    tried["an earlier epoch put back into the fleet's store"] += 1
    # The leader has restored it from the copy, under a new number.
    wait_until(lambda: fleet.status()["epoch"] == epoch + 1)
    assert {fleet.version() for _ in range(20)} == {served}
    wait_until(lambda: fleet.status()["gateways"][0]["epoch"] == epoch + 1)
    fleet.write({key: earlier[key].value for key in (KEYS.epoch, KEYS.epoch_copy)})
    tried["an earlier epoch put back with its copy"] += 1
    wait_until(lambda: {"epoch", "epoch-copy"} <= fleet.faults().keys())
    assert f"was put back: gateway front has epoch {epoch + 1}" in fleet.faults()["epoch"]
    assert {fleet.version() for _ in range(20)} == {served}
    wait_until(lambda: KEYS.served_epoch("front") in fleet.read())
    # A gateway that starts now follows it neither.
    restarted = next(each for each in fleet.up.children() if "gateway" in each.cmdline())
    restarted.kill()
    wait_until(lambda: not restarted.is_running())
    wait_until(lambda: [each["epoch"] for each in fleet.status()["gateways"]] == [0])
    wait_until(lambda: "epoch" in "".join(fleet.status()["gateways"][0]["faults"]))
    with pytest.raises(OSError, match="refused"):
        fleet.version()
    fleet.command("restore-epoch", "--yes")
    wait_until(lambda: not fleet.faults())
    wait_until(lambda: [each["epoch"] for each in fleet.status()["gateways"]] == [epoch + 2])
    assert {fleet.version() for _ in range(20)} == {served}
    fleet.command("rollout", "rollback", MODEL)
    wait_until(lambda: fleet.version() == before)


def test_other_forged_records_change_nothing(fleet: SealedFleet, tried: Counter[str]) -> None:
    served, generation = fleet.version(), fleet.status()["generation"]
    opened = fleet.read(fleet.key)
    worker = decode(opened[KEYS.worker("cpu-1")].value, WorkerRecord)
    gateway = decode(opened[KEYS.gateway("front")].value, GatewayRecord)
    elsewhere = msgspec.structs.replace(worker, port=1, grpc_port=1, incarnation="9" * 20)
    away = EventRecord(0.0, "supervisor", "drain")
    # With the owner's lease, so that it does not expire.
    fleet.write({KEYS.worker("cpu-1"): encode(elsewhere)}, lease=opened[KEYS.worker("cpu-1")].lease)
    fleet.write(
        {
            KEYS.gateway("front"): encode(msgspec.structs.replace(gateway, incarnation="9" * 20)),
            KEYS.known_gateway("front"): b"9",
            KEYS.drain("cpu-1"): encode(away),
            KEYS.drain("front"): encode(away),
            KEYS.standby("cpu-1"): encode(away),
            KEYS.rollout_number: b"12345678901",
            KEYS.seen_epoch("front"): b"9 99",
            KEYS.rollout("r900"): b'{"identity":"r900","changes":{}}',
        }
    )
    tried["other forged records in the fleet's store"] += 9
    for _ in range(20):
        assert fleet.version() == served
    # Those that a process keeps are written again by it.
    wait_until(lambda: {"workers/cpu-1", "gateways/front", "known-gateways/front"}.isdisjoint(fleet.faults()))
    assert {"drains/cpu-1", "drains/front", "standbys/cpu-1", "rollouts/r900"} <= fleet.faults().keys()
    assert fleet.version() == served
    assert fleet.status()["generation"] == generation
    # Each of the others ends by a command, or is written again when it changes.
    for name in ("cpu-1", "front"):
        fleet.command("drain", name)
        fleet.command("undrain", name)
    version = "2" if served == "1" else "1"
    fleet.command("rollout", "start", f"{MODEL}={version}")
    wait_until(lambda: fleet.version() == version)
    fleet.command("rollout", "rollback", MODEL)
    wait_until(lambda: fleet.version() == served)


def test_a_forged_leader_leads_nothing(fleet: SealedFleet, tried: Counter[str]) -> None:
    lease, leader = fleet.read()[KEYS.leader].lease, fleet.status()["leader"]
    for held in (0, lease):
        fleet.write({KEYS.leader: b"mallory"}, lease=held)
        tried["a forged leader"] += 1
        wait_until(lambda: fleet.read(fleet.key)[KEYS.leader].is_sealed)
        wait_until(lambda: fleet.status()["leader"] == leader)


def test_a_forged_fleet_is_not_followed_and_an_apply_replaces_it(fleet: SealedFleet, tried: Counter[str]) -> None:
    served, pids = fleet.version(), {each.pid for each in fleet.up.children()}
    record = decode(fleet.read(fleet.key)[KEYS.fleet].value, FleetRecord)
    spec = {**record.spec, "security": {"key": None}, "pools": {}}
    fleet.write({KEYS.fleet: encode(msgspec.structs.replace(record, generation=record.generation + 5, spec=spec))})
    tried["a forged fleet"] += 1
    wait_until(lambda: "fleet" in fleet.faults())
    assert {fleet.version() for _ in range(20)} == {served}
    assert pids <= {each.pid for each in fleet.up.children()}
    path = fleet.directory / "fleet.yaml"
    path.write_text(path.read_text() + "\n# applied again\n")
    fleet.command("apply", str(path), "--yes")
    wait_until(lambda: "fleet" not in fleet.faults())
    assert {fleet.version() for _ in range(20)} == {served}
    assert pids <= {each.pid for each in fleet.up.children()}


def test_a_controller_with_another_key_does_not_begin(fleet: SealedFleet, tried: Counter[str], tmp_path: Path) -> None:
    write_key(tmp_path / "other.key")
    key = ("--fleet-key", str(tmp_path / "other.key"))
    found = isochrone("control", *member_flags(fleet, "c9"), "--listen", "127.0.0.1:0", *key)
    assert found.returncode == 1
    assert "sealed with another key" in found.stderr
    tried["a controller with another key"] += 1
