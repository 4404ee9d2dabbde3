"""Requests that wait for a worker: who may, how they go on, how they end."""

from __future__ import annotations

import gc
import weakref

import pytest
from offline import add_members, make_fleet
from plain_requests import plain_request, told

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.errors import ConnectionLost, DeadlineExceeded, NoWorkerReady, Unavailable
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.resilience.retry_budget import RetryRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.waiting_room import WaitingRoomRules

MODEL = {"m": {"1": "", "2": ""}}


class Scene:
    """A machine whose model m has no worker yet."""

    def __init__(self, most: int = 8, quota: QuotaRules | None = None, wait_ns: int = 10 * SECOND) -> None:
        rules = ModelRules(waiting_room=WaitingRoomRules(most, wait_ns), quota=quota or QuotaRules())
        self.fleet = make_fleet(GatewayRules(models={"m": rules, "other": ModelRules()}))
        self.fleet.lead()
        self.commit(1, "1")
        self.machine = RequestMachine(self.fleet)
        self.now = SECOND
        self.number = 0

    def commit(self, epoch: int, version: str) -> None:
        committed = {name: Commitment(epoch, version, {"1": "", "2": ""}) for name in ("m", "other")}
        self.fleet.commit(epoch, committed)

    def request(self, model: str = "m", deadline: int = NEVER, key: bytes = b"") -> Request:
        self.number += 1
        return plain_request(self.fleet.model(model), self.number, self.now, deadline=deadline, key=key)

    def arrive(self, model: str = "m", deadline: int = NEVER) -> list[Instruction]:
        return self.machine.arrive(self.request(model, deadline), self.now)

    def go_on(self, milliseconds: float = 0) -> list[Instruction]:
        """As the gateway's sweep does."""
        self.now += int(milliseconds * MILLISECOND)
        instructions: list[Instruction] = []
        while expired := self.machine.expire_waiting(self.now):
            instructions += expired
        return instructions + self.machine.go_on_waiting(self.now)

    def answer_all(self) -> None:
        for request in list(self.machine.open):
            self.machine.answered(request, request.attempts[0], Outcome.ANSWERED, self.now)


def test_they_go_on_in_order_when_a_worker_is_ready() -> None:
    scene = Scene()
    assert [scene.arrive() for _ in range(3)] == [[], [], []]
    assert len(scene.machine.waiting) == scene.machine.waiting.count("m") == 3
    assert scene.go_on() == []
    add_members(scene.fleet, MODEL)
    assert told(scene.go_on()) == [("SEND", number, "a:1") for number in (1, 2, 3)]
    assert len(scene.machine.waiting) == 0
    assert len(scene.machine.open) == 3
    assert scene.fleet.model("m").requests == 3, "each is counted once"


def test_a_model_without_a_waiting_room_rejects_at_once() -> None:
    scene = Scene()
    ((do, _, error),) = scene.arrive("other")
    assert do is Do.REJECT
    assert isinstance(error, NoWorkerReady)
    assert error.code == "unavailable"


def test_no_more_wait_than_the_rules_allow() -> None:
    scene = Scene(most=2)
    scene.arrive()
    scene.arrive()
    ((do, _, error),) = scene.arrive()
    assert do is Do.REJECT
    assert isinstance(error, Unavailable)
    assert "2 requests wait for one already (waiting_room.max_requests)" in str(error)
    assert scene.fleet.model("m").rejected == 1


def test_none_waits_past_its_deadline_or_the_longest_wait() -> None:
    scene = Scene(wait_ns=100 * MILLISECOND)
    scene.arrive(deadline=scene.now + 30 * MILLISECOND)
    scene.arrive()
    assert scene.go_on(29) == []
    ((_, first, late),) = scene.go_on(1)
    assert isinstance(late, DeadlineExceeded)
    assert "no worker was ready for model 'm' within 30.0 ms" in str(late)
    ((_, second, tired),) = scene.go_on(70)
    assert isinstance(tired, NoWorkerReady)
    assert "waiting_room.max_wait_ms" in str(tired)
    assert first.over  # type: ignore[union-attr]
    assert second.over  # type: ignore[union-attr]
    assert scene.fleet.model("m").rejections["deadline_exceeded"] == 1
    add_members(scene.fleet, MODEL)
    assert scene.go_on() == []


def test_the_version_is_the_one_that_is_committed_when_it_goes_on() -> None:
    scene = Scene()
    scene.arrive()
    scene.commit(2, "2")
    add_members(scene.fleet, MODEL)
    ((do, request, attempt),) = scene.go_on()
    assert do is Do.SEND
    assert attempt.replica_set.version == "2"
    assert request.epoch == 2  # type: ignore[union-attr]


def test_a_model_that_is_no_longer_served_ends_the_wait() -> None:
    scene = Scene()
    scene.arrive()
    scene.fleet.commit(2, {})
    ((do, _, error),) = scene.go_on()
    assert do is Do.REJECT
    assert "unknown model" in str(error)
    assert len(scene.machine.waiting) == 0


def test_a_strict_switch_holds_what_has_waited_for_a_worker() -> None:
    scene = Scene()
    scene.arrive()
    scene.fleet.hold(["m"])
    add_members(scene.fleet, MODEL)
    assert scene.go_on() == []
    assert (len(scene.machine.waiting), scene.machine.held) == (0, 1)
    scene.commit(2, "2")
    ((_, _, attempt),) = scene.machine.release(scene.now)
    assert attempt.replica_set.version == "2"


def test_an_unhealthy_worker_is_none() -> None:
    """In panic it gets the requests of models without a waiting room."""
    scene = Scene()
    add_members(scene.fleet, {**MODEL, "other": MODEL["m"]})
    scene.fleet.members["a:1"].endpoint.healthy = False
    scene.fleet.rebuild()
    assert scene.arrive() == []
    assert told(scene.arrive("other")) == [("SEND", 2, "a:1")]
    assert scene.go_on(20) == []
    scene.fleet.members["a:1"].endpoint.healthy = True
    scene.fleet.rebuild()
    assert told(scene.go_on()) == [("SEND", 1, "a:1")]


@pytest.mark.interpreted
@pytest.mark.parametrize("where", ["before it is placed", "while it is placed"])
def test_a_fault_with_one_harms_no_other(where: str) -> None:
    scene = Scene()
    scene.arrive()
    broken = scene.request()
    scene.machine.arrive(broken, scene.now)
    scene.arrive()
    if where == "before it is placed":
        broken.demand = None  # type: ignore[assignment]
    else:
        broken.attempts = None  # type: ignore[assignment]
    add_members(scene.fleet, MODEL)
    instructions = scene.go_on()
    assert [(each[0], each[1].number) for each in instructions if each[1] is not None] == [  # type: ignore[attr-defined]
        (Do.SEND, 1),
        (Do.REJECT, 2),
        (Do.SEND, 3),
    ]
    assert broken.over
    assert broken not in scene.machine.open


def test_a_worker_that_did_not_take_a_request_gets_it_again_when_it_has_answered_others() -> None:
    scene = Scene()
    add_members(scene.fleet, MODEL)
    request = scene.request()
    ((_, _, attempt),) = scene.machine.arrive(request, scene.now)
    refused = ConnectionLost("refused", unprocessed=True)
    assert [each[0] for each in scene.machine.lost(request, attempt, refused, scene.now)] == [Do.LOOK]
    assert request in set(scene.machine.waiting)
    assert scene.go_on(20) == [], "its checks have not failed yet"
    scene.fleet.members["a:1"].endpoint.heard_at = scene.now
    assert told(scene.go_on()) == [("SEND", 1, "a:1")]
    assert scene.fleet.model("m").retries == 1
    assert scene.fleet.model("m").requests == 1


def test_a_request_that_no_worker_takes_is_given_up() -> None:
    scene = Scene()
    add_members(scene.fleet, MODEL)
    request = scene.request()
    instructions = scene.machine.arrive(request, scene.now)
    sent = 0
    while instructions and instructions[0][0] is Do.SEND:
        sent += 1
        refused = ConnectionLost("refused", unprocessed=True)
        ended = scene.machine.lost(request, instructions[0][2], refused, scene.now)
        if request.over:
            assert ended[-1][0] is Do.REJECT
            break
        scene.fleet.members["a:1"].endpoint.heard_at = scene.now + MILLISECOND
        instructions = scene.go_on(2)
    assert request.over
    assert sent == 8


def test_without_retries_what_a_worker_did_not_take_does_not_wait() -> None:
    scene = Scene()
    rules = ModelRules(waiting_room=WaitingRoomRules(8), retries=RetryRules(enabled=False))
    scene.fleet.configure(GatewayRules(models={"m": rules}))
    add_members(scene.fleet, MODEL)
    request = scene.request()
    ((_, _, attempt),) = scene.machine.arrive(request, scene.now)
    ended = scene.machine.lost(request, attempt, ConnectionLost("refused", unprocessed=True), scene.now)
    assert ended[-1][0] is Do.REJECT


def test_those_of_another_version_do_not_wait_for_it() -> None:
    scene = Scene()
    first, second = scene.request(), scene.request()
    first.version, second.version = "1", "2"
    for request in (first, second):
        assert scene.machine.arrive(request, scene.now) == []
    add_members(scene.fleet, {"m": {"2": ""}})
    assert told(scene.go_on()) == [("SEND", 2, "a:1")]
    assert set(scene.machine.waiting) == {first}


def test_later_ones_stand_behind_those_that_wait() -> None:
    scene = Scene(most=200)
    for _ in range(100):
        scene.arrive()
    add_members(scene.fleet, MODEL)
    while scene.go_on():
        pass
    assert scene.arrive() == [], "36 wait, since the worker has enough for now"
    scene.answer_all()
    sent = []
    while instructions := scene.go_on():
        sent += [number for _, number, _ in told(instructions)]
    assert sent == list(range(65, 102))
    assert told(scene.arrive())[0][0] == "SEND", "nobody waits any more"
    assert scene.fleet.model("m").plain


def test_models_take_turns() -> None:
    scene = Scene(most=2000)
    rules = ModelRules(waiting_room=WaitingRoomRules(2000))
    scene.fleet.configure(GatewayRules(models={"m": rules, "other": rules}))
    for _ in range(200):
        scene.arrive()
    scene.arrive("other")
    add_members(scene.fleet, {"m": {"1": ""}, "other": {"1": ""}})
    assert 201 in [number for _, number, _ in told(scene.go_on())]


def test_those_that_have_left_are_forgotten() -> None:
    scene = Scene(most=2)
    scene.arrive()
    gone = []
    for _ in range(1000):
        request = scene.request()
        scene.machine.arrive(request, scene.now)
        gone.append(weakref.ref(request))
        scene.machine.cancelled(request, scene.now)
    del request
    gc.collect()
    assert sum(each() is not None for each in gone) <= 128
    assert len(scene.machine.waiting) == 1


def test_a_room_that_callers_have_emptied_is_forgotten() -> None:
    scene = Scene()
    request = scene.request()
    scene.machine.arrive(request, scene.now)
    scene.machine.cancelled(request, scene.now)
    assert not scene.fleet.model("m").has_waiting
    assert scene.fleet.model("m").plain or scene.fleet.model("m").outdated


def test_the_place_in_a_quota_is_given_back_where_a_switch_ends_the_wait() -> None:
    scene = Scene(quota=QuotaRules(concurrency=1))
    scene.arrive()
    scene.fleet.hold(["m"])
    add_members(scene.fleet, MODEL)
    assert scene.go_on() == []
    assert scene.machine.held == 1
    ((do, _, _),) = scene.machine.reject_held("it takes too long", scene.now)
    assert do is Do.REJECT
    scene.machine.release(scene.now)
    assert [each[0] for each in scene.arrive()] == [Do.SEND]
    assert scene.fleet.model("m").requests == 2


def test_the_wait_does_not_count_as_the_models_time() -> None:
    scene = Scene()
    request = scene.request()
    scene.machine.arrive(request, scene.now)
    add_members(scene.fleet, MODEL)
    scene.go_on(8000)
    assert request.arrived == scene.now


def test_what_may_have_run_does_not_wait() -> None:
    scene = Scene()
    add_members(scene.fleet, MODEL)
    request = scene.request()
    ((_, _, attempt),) = scene.machine.arrive(request, scene.now)
    scene.fleet.members["a:1"].endpoint.draining = True
    scene.fleet.rebuild()
    instructions = scene.machine.lost(request, attempt, ConnectionLost("cut"), scene.now)
    assert (Do.REJECT, request) in [each[:2] for each in instructions]
    assert len(scene.machine.waiting) == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_sequence_only_the_first_request_waits(is_first: bool) -> None:
    scene = Scene()
    request = scene.request(key=SEQUENCE_MARK + b"7")
    request.demand.starts_sequence = is_first
    instructions = scene.machine.arrive(request, scene.now)
    assert (instructions == []) is is_first
    assert len(scene.machine.waiting) == is_first


def test_its_place_in_a_quota_is_kept_and_given_back() -> None:
    scene = Scene(quota=QuotaRules(rate=1, burst=1, concurrency=1))
    request = scene.request()
    assert scene.machine.arrive(request, scene.now) == []
    ((do, _, _),) = scene.arrive()
    assert do is Do.REJECT, "the only place is taken by the one that waits"
    scene.now += 5 * SECOND
    assert scene.machine.cancelled(request, scene.now) == []
    assert request.over
    assert len(scene.machine.waiting) == 0
    assert scene.arrive() == []
    add_members(scene.fleet, MODEL)
    assert [each[0] for each in scene.go_on()] == [Do.SEND], "it is not charged twice"
    (going,) = scene.machine.open
    scene.machine.cancelled(going, scene.now)
    scene.now += 5 * SECOND
    assert [each[0] for each in scene.arrive()] == [Do.SEND]


def test_an_emptied_room_takes_new_rules() -> None:
    scene = Scene(most=1)
    request = scene.request()
    scene.machine.arrive(request, scene.now)
    scene.machine.cancelled(request, scene.now)
    wider = ModelRules(waiting_room=WaitingRoomRules(2))
    scene.fleet.configure(GatewayRules(models={"m": wider}))
    assert [scene.arrive(), scene.arrive()] == [[], []]


def test_a_gateway_that_stops_rejects_them_and_lets_no_other_wait() -> None:
    scene = Scene()
    scene.arrive()
    ((do, _, error),) = scene.machine.close_waiting("the gateway is stopping", scene.now)
    assert do is Do.REJECT
    assert str(error) == "the gateway is stopping"
    assert [each[0] for each in scene.arrive()] == [Do.REJECT]


def test_thousands_go_on_a_few_at_a_time_as_the_worker_answers() -> None:
    scene = Scene(most=1000)
    for _ in range(100):
        scene.arrive()
    add_members(scene.fleet, MODEL)
    sizes = []
    while len(scene.machine.waiting):
        while instructions := scene.go_on():
            sizes.append(sum(each[0] is Do.SEND for each in instructions))
        scene.answer_all()
    assert sizes == [16] * 6 + [4]
    assert scene.fleet.model("m").rejected == 0


def test_who_watches_learns_the_models_whose_requests_wait() -> None:
    scene = Scene()
    changes: list[tuple[str, bool]] = []
    scene.machine.waiting.on_change = lambda model, waits: changes.append((model, waits))
    scene.arrive()
    asks_version = scene.request()
    asks_version.version = "2"
    scene.machine.arrive(asks_version, scene.now)
    assert scene.machine.waiting.counts() == {"m": 2}
    assert changes == [("m", True)], "two lines of one model are one change"
    scene.machine.cancelled(asks_version, scene.now)
    assert changes == [("m", True)]
    add_members(scene.fleet, MODEL)
    scene.go_on()
    assert changes == [("m", True), ("m", False)]
    assert scene.machine.waiting.counts() == {}


def test_who_watches_learns_that_the_rooms_were_closed() -> None:
    scene = Scene()
    scene.arrive()
    scene.arrive()
    changes: list[tuple[str, bool]] = []
    scene.machine.waiting.on_change = lambda model, waits: changes.append((model, waits))
    scene.machine.close_waiting("the gateway is stopping", scene.now)
    assert changes == [("m", False)]
