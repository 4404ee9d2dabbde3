"""A running fleet gets a key, exchanges it and loses it, and every request is answered meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sealed_fleet import KEYS, SealedFleet, fleet_text, sealed_fleet, wait_until, write_key

from isochrone.secure.fleet_key import FleetKey, read_fleet_key
from isochrone.store.seals import NO_SEAL
from up_process import SECONDS, isochrone

WORKERS = GATEWAYS = 2


@contextmanager
def load(fleet: SealedFleet) -> Iterator[Counter[str]]:
    """Requests one after the other, each on a connection of its own, to the gateways in turn; counts what came back.

    A client knows both gateways: where a gateway does not listen, as it restarts, nothing was sent, and the client
    asks the other one. Everything else that is not an answer is a failure.
    """
    counts: Counter[str] = Counter()
    stopping = threading.Event()

    def one(first: int) -> str:
        try:
            return fleet.version(first)
        except ConnectionRefusedError:
            return fleet.version(1 - first)

    def client(first: int) -> None:
        while not stopping.is_set():
            try:
                counts[f"version {one(first)}"] += 1
            except Exception as error:
                counts[f"failed: {error!r}"[:300]] += 1
            first = 1 - first

    threads = [threading.Thread(target=client, args=(number,)) for number in range(GATEWAYS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def apply(fleet: SealedFleet, security: str) -> str:
    """Apply, and return once every process has restarted with its new flags. Else: why it was refused."""
    path = fleet.directory / "fleet.yaml"
    path.write_text(fleet_text(fleet.control, fleet.gateway, security, WORKERS, GATEWAYS))
    before = incarnations(fleet)
    found = isochrone("apply", str(path), "--yes", "--api", f"http://127.0.0.1:{fleet.control}")
    if found.returncode:
        return " ".join((found.stdout + found.stderr).split())

    seen: dict[str, str] = {}

    def is_done() -> bool:
        # At no moment does one process of the fleet refuse what another one wrote, such as the supervisor's drains.
        with contextlib.suppress(OSError, http.client.HTTPException):  # the one controller restarts
            seen.update(fleet.faults())
        now = incarnations(fleet)
        return now.keys() == before.keys() and all(each != before[key] for key, each in now.items())

    wait_until(is_done)
    wait_until(lambda: reachable(fleet) and not fleet.faults())
    assert not seen
    return ""


def incarnations(fleet: SealedFleet) -> dict[str, str]:
    """By key of a worker or gateway: which process it is, with or without a seal."""
    found = {}
    for key, entry in fleet.read().items():
        if key.startswith((KEYS.workers, KEYS.gateways)):
            record = json.loads(entry.value[: entry.value.rindex(b"}") + 1])
            found[key] = record["incarnation"]
    return found


def reachable(fleet: SealedFleet) -> bool:
    try:
        status = fleet.status()
    except (OSError, http.client.HTTPException):
        return False  # the one controller restarts
    return len(status["workers"]) == WORKERS and len(status["gateways"]) == GATEWAYS and bool(status["leader"])


def workers_used(fleet: SealedFleet, gateway: int) -> set[str]:
    """The workers that a gateway sends requests to, by its flight recorder."""
    (metrics,) = [each["metrics"] for each in fleet.status()["gateways"] if each["name"] == f"front-{gateway + 1}"]
    found = set()
    for number in range(8):
        identity = f"probe-{gateway}-{number}-{time.monotonic_ns()}"
        assert fleet.version(gateway, {"x-request-id": identity})
        with urllib.request.urlopen(f"http://{metrics}/v1/flights/{identity}", timeout=SECONDS) as answer:
            flights = [flight for page in json.load(answer)["pages"] for flight in page["flights"]]
        found |= {attempt["endpoint"] for flight in flights for attempt in flight["attempts"]}
    return found


def unsealed(fleet: SealedFleet, key: FleetKey) -> list[str]:
    return [name for name, entry in fleet.read(key).items() if not entry.is_sealed]


@pytest.mark.long
def test_a_fleet_under_load_gets_a_key_and_another_one(tmp_path: Path, tried: Counter[str]) -> None:
    with sealed_fleet(tmp_path, "{}", workers=WORKERS, gateways=GATEWAYS) as fleet:
        with load(fleet) as counts:
            wait_until(lambda: counts["version 1"] > 20)
            assert "apply the file with key_required: false first" in apply(fleet, "{key: fleet.key}")
            assert not apply(fleet, "{key: fleet.key, key_required: false}")
            # What stood before is sealed by the leader: nothing is left that a required key would refuse.
            wait_until(lambda: not unsealed(fleet, fleet.key))
            assert not apply(fleet, "{key: fleet.key}")
            assert not unsealed(fleet, fleet.key)
            fleet.write({KEYS.drain("cpu-1"): b'{"at":0.0,"who":"supervisor","what":"drain"}'})
            tried["a forged drain after a fleet got its key"] += 1
            wait_until(lambda: fleet.faults().get("drains/cpu-1") == NO_SEAL)
            # A worker is taken away only when every gateway sends requests to the other one as well.
            wait_until(lambda: all(len(workers_used(fleet, number)) == WORKERS for number in range(GATEWAYS)))
            fleet.command("drain", "cpu-1")
            fleet.command("undrain", "cpu-1")
            # The exchange: the new key is accepted, then it seals, then the old one is not accepted any more.
            old = (tmp_path / "fleet.key").read_text().strip()
            new = write_key(tmp_path / "both.key", old)
            second = (tmp_path / "both.key").read_text().split()[1]
            (tmp_path / "turned.key").write_text(f"{second}\n{old}\n")
            (tmp_path / "new.key").write_text(f"{second}\n")
            assert not apply(fleet, "{key: both.key}")
            assert not apply(fleet, "{key: turned.key}")
            wait_until(lambda: not unsealed(fleet, new))
            assert not apply(fleet, "{key: new.key}")
            assert not unsealed(fleet, new)
            assert all(b"refused" in entry.value for entry in fleet.read(FleetKey(old.encode())).values())
            fleet.command("rollout", "start", "identity_fp32=2")
            wait_until(lambda: counts["version 2"] > 20)
        assert set(counts) == {"version 1", "version 2"}, counts
        assert read_fleet_key(tmp_path / "new.key") is not None
