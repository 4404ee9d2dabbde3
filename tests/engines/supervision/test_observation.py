"""Who is ready, by what the store and the engine say."""

from __future__ import annotations

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Running
from isochrone.engines.supervision.observation import is_heard_of, observe
from isochrone.engines.supervision.reconcile import Observed
from isochrone.store.base import Entry

KEYS = Keys("plant")
WORKER = ProcessSpec("w", "worker", ("serve",), "cpu")
GATEWAY = ProcessSpec("g", "gateway", ("gateway",))
CONTROLLER = ProcessSpec("c", "controller", ("control",))


def view(worker_pid: int = 0, gateway_pid: int = 0) -> View:
    entries = {}
    if worker_pid:
        entries[KEYS.worker("w")] = encode(WorkerRecord("w", "h", 1, 2, pid=worker_pid))
    if gateway_pid:
        entries[KEYS.gateway("g")] = encode(GatewayRecord("g", "h", 1, pid=gateway_pid))
    return View(KEYS, {key: Entry(key, value, 1) for key, value in entries.items()})


def ready(spec: ProcessSpec, pid: int, seen: View, answering: int | None = None) -> bool:
    answers = {} if answering is None else {spec.name: answering}
    return observe(seen, {spec.name: Running(pid, spec, 0.0, 0)}, {}, (), answers)[spec.name].ready


def test_a_record_of_the_present_process_makes_it_ready() -> None:
    assert ready(WORKER, 7, view(worker_pid=7))
    assert ready(GATEWAY, 7, view(gateway_pid=7))
    assert ready(CONTROLLER, 7, view(), answering=7)


def test_no_record_or_one_of_the_process_before_does_not() -> None:
    assert not ready(WORKER, 8, view(worker_pid=7))
    assert not ready(GATEWAY, 8, view(gateway_pid=7))
    assert not ready(CONTROLLER, 8, view(), answering=7)
    assert not ready(WORKER, 8, view())
    assert not ready(CONTROLLER, 8, view())
    assert not ready(WORKER, 0, view())


def test_drains_and_idleness_are_passed_on() -> None:
    running = {"w": Running(7, WORKER, 0.0, 0, stopping=True)}
    assert observe(view(worker_pid=7), running, {"w": 3.0}, {"w"}, {}) == {"w": Observed(WORKER, True, True, 3.0, True)}


def test_one_that_does_not_serve_what_is_committed_is_not_ready() -> None:
    running = {"w": Running(7, WORKER, 0.0, 0)}
    (seen,) = observe(view(worker_pid=7), running, {}, (), {}, behind={"w"}).values()
    assert (seen.ready, seen.steady) == (False, True)
    (seen,) = observe(view(worker_pid=7), running, {}, (), {}, fresh={"w"}).values()
    assert (seen.ready, seen.steady) == (True, False)


def heard_of(spec: ProcessSpec, seen: View, **state: bool) -> bool:
    return is_heard_of(spec.name, Running(7, spec, 0.0, 0, **{"reachable": False, **state}), seen)


def test_news_of_a_process_come_from_the_engine_or_the_store() -> None:
    assert not heard_of(WORKER, view())
    assert heard_of(WORKER, view(), reachable=True)
    assert heard_of(WORKER, view(), stopping=True)
    # Its lease has not expired: it reaches the store.
    assert heard_of(WORKER, view(worker_pid=7))
    assert not heard_of(CONTROLLER, view())


def test_a_gateway_that_did_not_deregister_may_still_answer() -> None:
    known = View(KEYS, {KEYS.known_gateway("g"): Entry(KEYS.known_gateway("g"), b"1", 1)})
    assert heard_of(GATEWAY, known)
    assert not heard_of(GATEWAY, view())


def test_a_lost_process_is_observed_as_lost() -> None:
    running = {"w": Running(7, WORKER, 0.0, 0), "c": Running(8, CONTROLLER, 0.0, 0)}
    found = observe(view(), running, {}, (), {}, lost={"w"})
    assert (found["w"].lost, found["c"].lost) == (True, False)
