"""Under load: another server takes over a worker's port, and records of every kind are damaged in the store.

Requests are answered by the others, nobody's process ends, and ``status`` and ``events`` say what is wrong.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from real_fleets import LIMIT, command, pids, small_fleet, until

from bench.control.checker import Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS
from bench.control.running_fleet import GATEWAY
from fleet_load import FleetLoad
from isochrone.control.state.keys import Keys
from isochrone.store.base import Put, Store
from isochrone.store.sqlite.store import SqliteStore

pytestmark = pytest.mark.long


class _Page(BaseHTTPRequestHandler):
    """Somebody's web application: everything is well, whatever is asked."""

    protocol_version = "HTTP/1.1"
    body, kind = b"<html>It works!</html>", "text/html"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class _Json(_Page):
    body, kind = b'{"status": "ok"}', "application/json"


@contextmanager
def taking_over(fleet: SupervisedFleet, name: str, page: type[_Page]) -> Iterator[list[str]]:
    """Kills a worker and listens on its port as soon as that is free; the paths that were asked for."""
    port = int(fleet.parts[name].address.rpartition(":")[2])
    fleet.signal(name, signal.SIGKILL)
    ends = time.monotonic() + LIMIT
    while True:
        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), page)
            break
        except OSError:
            assert time.monotonic() < ends, "the port was never free"
            if fleet.responds(name):
                # The supervisor was quicker than this process, which got no turn.
                fleet.signal(name, signal.SIGKILL)
    asked: list[str] = []
    server.asked = asked  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def models(fleet: SupervisedFleet) -> dict[str, str]:
    return {model["name"]: model["state"] for model in fleet.api.status()["models"]}


def events(fleet: SupervisedFleet) -> list[str]:
    return [f"{event['what']} {event['about']} {event['detail']}" for event in fleet.api.events()]


def _port_is_taken_over(tmp_path: Path, page: type[_Page]) -> None:
    with small_fleet(tmp_path) as fleet:
        others = {name: pid for name, pid in pids(fleet).items() if name != "cpu-1"}
        with FleetLoad(fleet.gateways, rate=120.0) as load:
            with taking_over(fleet, "cpu-1", page) as asked:
                until(lambda: "/v2/repository/index" in asked, "the gateway to ask for the index")
                load.wait_answers(100)
                until(
                    lambda: any("worker gets no requests cpu-1" in each and "index" in each for each in events(fleet)),
                    "the event",
                )
                shown = until(lambda: _row(command(fleet, "status").said, "cpu-1"), "the worker in status")
                assert "serving" not in shown
                assert set(models(fleet).values()) == {"serving"}
                load.wait_answers(100)
            # The port is free again: the worker comes back by itself.
            until(lambda: _row(command(fleet, "status").said, "cpu-1", "serving"), "the worker to serve again")
            load.wait_answers(50)
        assert not load.failed, load.failed[:5]
        load.check([Commit(1, dict.fromkeys(MODELS, "1"))])
        assert {name: pid for name, pid in pids(fleet).items() if name != "cpu-1"} == others


def _row(shown: str, *words: str) -> str:
    """The first line of a table with all these words."""
    return next((line for line in shown.splitlines() if all(word in line for word in words)), "")


def test_another_servers_pages_on_a_workers_port_reach_nobody(tmp_path: Path) -> None:
    _port_is_taken_over(tmp_path, _Page)


def test_nor_do_another_servers_answers_in_json(tmp_path: Path) -> None:
    _port_is_taken_over(tmp_path, _Json)


def test_status_shows_what_would_be_answered_now(tmp_path: Path) -> None:
    """Committed, registered, and stopped: nothing is serving until it goes on."""
    with small_fleet(tmp_path, Shape(workers=1, gateways=1, controllers=1)) as fleet:
        until(lambda: set(models(fleet).values()) == {"serving"}, "the models to serve")
        fleet.signal("cpu-1", signal.SIGSTOP)
        until(lambda: set(models(fleet).values()) == {"unserved"}, "the models to be unserved")
        shown = command(fleet, "status").said
        assert "no worker can take a request" in shown
        assert "gets no requests" in shown
        fleet.signal("cpu-1", signal.SIGCONT)
        until(lambda: set(models(fleet).values()) == {"serving"}, "the models to serve again")


# Records.

DAMAGE = b"\xff no JSON"


class Vandal:
    """Writes into the fleet's store from outside."""

    def __init__(self, fleet: SupervisedFleet) -> None:
        self._path = Path(fleet.file).parent / "fleet.db"
        self.keys = Keys(str(fleet.api.status()["fleet"]))

    def write(self, key: str, value: bytes) -> None:
        self.write_at_once([key], value)

    def write_at_once(self, keys: Iterable[str], value: bytes) -> None:
        self._do(lambda store: store.transact((), [Put(key, value) for key in keys]))

    def read(self, key: str) -> bytes | None:
        entry = self._do(lambda store: store.get(key))
        return entry.value if entry is not None else None

    def _do(self, work: Callable[[Store], Any]) -> Any:
        async def run() -> Any:
            store = SqliteStore(f"sqlite:{self._path}", self._path)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


def test_damaged_records_of_every_kind_harm_nobody_and_a_restart_works(tmp_path: Path) -> None:
    shape = Shape(workers=2, gateways=2, controllers=2)
    with small_fleet(tmp_path, shape) as fleet:
        before = pids(fleet)
        vandal = Vandal(fleet)
        keys = vandal.keys
        with FleetLoad(fleet.gateways) as load:
            fleet.api.wait(fleet.api.start_rollout({"solo": "2"}, "strict"), LIMIT)
            for key in (keys.worker("cpu-1"), keys.gateway("gw-1"), keys.known_gateway("gw-1")):
                # Its owner writes it again, perhaps before the leader has seen that it was damaged.
                vandal.write(key, DAMAGE)
                until(lambda key=key: vandal.read(key) not in (DAMAGE, None), f"{key} to be written again")
                load.wait_answers(20)
            for key in (
                keys.rollout("r9"),
                keys.drain("nobody"),
                keys.event("0000000000000001-x"),
                keys.switch,
                keys.reconciled,
                keys.epoch_copy,
                keys.epoch,
                keys.rollout_number,
                keys.fleet,
            ):
                vandal.write(key, DAMAGE)
                until(lambda key=key: any(f"record cannot be read {key} " in each for each in events(fleet)), key)
                load.wait_answers(20)
            # Those that stay damaged are shown; the others were written again by their owners.
            left = {keys.rollout("r9"), keys.drain("nobody"), keys.event("0000000000000001-x"), keys.fleet}
            left |= {keys.rollout_number}
            until(lambda: {fault["key"] for fault in fleet.api.status()["faults"]} == left, "the others to be mended")
            assert keys.rollout("r9") in command(fleet, "status").said
            assert any("epoch restored" in each for each in events(fleet))
            assert pids(fleet) == before
            assert set(models(fleet).values()) == {"serving"}
        assert not load.failed, load.failed[:5]
    # A restart over the damaged store: the file is applied anew, and what was served is served.
    with small_fleet(tmp_path, shape) as fleet:
        assert fleet.api.versions()["solo"] == "2"
        with FleetLoad(fleet.gateways) as load:
            done = fleet.api.wait(fleet.api.start_rollout({"solo": "3"}, "strict"), LIMIT)
            assert done["state"] == "done", done
            load.wait_answers(20)
        assert not load.failed, load.failed[:5]


def test_an_epoch_whose_copy_is_damaged_too_is_restored_from_what_gateways_serve(tmp_path: Path) -> None:
    with small_fleet(tmp_path, Shape(workers=2, gateways=2, controllers=1)) as fleet:
        vandal = Vandal(fleet)
        keys = vandal.keys
        first, second = fleet.of(GATEWAY)
        with FleetLoad([first.address]) as load:
            fleet.api.wait(fleet.api.start_rollout({"solo": "2"}, "strict"), LIMIT)
            versions, epoch = fleet.api.versions(), fleet.api.status()["epoch"]
            vandal.write_at_once((keys.epoch, keys.epoch_copy), DAMAGE)
            until(lambda: any("isochrone restore-epoch" in each for each in events(fleet)), "the event")
            assert "isochrone restore-epoch" in " ".join(command(fleet, "status").said.split())
            refused = command(fleet, "rollout", "start", "solo=3")
            assert refused.status == 1
            assert "isochrone restore-epoch" in " ".join(refused.said.split())
            until(lambda: vandal.read(keys.served_epoch(first.name)), "the gateway's offer")
            load.wait_answers(20)
            # One that restarts now cannot read what to serve, and waits.
            fleet.signal(second.name, signal.SIGKILL)
            seen = until(lambda: command(fleet, "restore-epoch", "--dry-run", "--json").data, "the preview")
            assert seen["epoch"] > epoch
            assert {model["name"]: model["version"] for model in seen["models"]} == versions
            # There is no terminal here: nobody can be asked.
            refused = command(fleet, "restore-epoch")
            assert refused.status == 1
            assert "--yes" in refused.said
            assert vandal.read(keys.epoch) == DAMAGE
            ended = command(fleet, "restore-epoch", "--yes")
            assert ended.status == 0, ended.said
            assert f"Restored as epoch {seen['epoch']}" in ended.said
            assert fleet.api.versions() == versions
            until(lambda: vandal.read(keys.served_epoch(first.name)) is None, "the offers to be deleted")
            until(lambda: set(models(fleet).values()) == {"serving"}, "the models to serve")
            until(
                lambda: {each["epoch"] for each in fleet.api.status()["gateways"]} == {seen["epoch"]},
                "both gateways to serve by it",
            )
            done = fleet.api.wait(fleet.api.start_rollout({"solo": "3"}, "strict"), LIMIT)
            assert done["state"] == "done", done
            load.wait_answers(20)
            assert command(fleet, "restore-epoch", "--yes").status == 1, "nothing is lost any more"
        assert not load.failed, load.failed[:5]
