"""What an attempt leaves behind: counts, and the circuit breaker of its model on that endpoint."""

from __future__ import annotations

from offline import add_members, make_fleet

from isochrone.clock import SECOND, now_ns
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.replicas import Replica
from isochrone.gateway.requests import accounts
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.breaker import State


def begin(fleet: Fleet, replica: Replica, now: int) -> Attempt:
    request = Request(now)
    request.served = fleet.model("m")
    request.replica_set = request.served.current
    return accounts.begin(request, replica, now)


def test_an_endpoint_lost_with_many_requests_is_tried_again_after_the_first_pause() -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
    model = fleet.model("m")
    replica = model.current.replicas["a:1"]
    now = now_ns()
    attempts = [begin(fleet, replica, now) for _ in range(120)]
    for attempt in attempts:
        accounts.end(attempt, now, failed=True, answered=False)
    assert replica.in_flight == 0
    pause = model.rules.breaker.open_ns
    assert pause == SECOND
    assert "open" in replica.breaker.refusal(now + pause - 1)
    assert replica.breaker.refusal(now + pause) == ""


def test_an_attempt_that_outlives_its_circuit_breaker_is_no_evidence_for_the_next_one() -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}}, {"m": {"1": ""}})
    model = fleet.model("m")
    replica = model.current.replicas["a:1"]
    rules = model.rules.breaker
    now = now_ns()

    def sent() -> Attempt:
        return begin(fleet, replica, now)

    def half_open() -> None:
        nonlocal now
        for _ in range(rules.least_requests + 1):
            accounts.end(sent(), now, failed=True)
        now += rules.open_ns
        assert replica.breaker.refusal(now) == ""
        assert replica.breaker.state is State.HALF_OPEN

    half_open()
    long_running = [sent(), sent()]
    for _ in range(rules.trials):
        accounts.end(sent(), now, failed=False)
    assert replica.breaker.state is State.CLOSED
    now += 2 * rules.window_ns
    model.tick(now)
    assert replica.breaker is None

    half_open()
    accounts.end(long_running[0], now, failed=False)
    accounts.drop(long_running[1], now)
    for _ in range(rules.trials):
        assert replica.breaker.refusal(now) == ""
        sent()
    assert "half-open" in replica.breaker.refusal(now)


def test_a_worker_with_many_models_is_asked_for_its_load_as_often_as_one_with_few() -> None:
    fleet = make_fleet()
    names = [f"m{number}" for number in range(50)]
    add_members(fleet, {name: {"1": ""} for name in names})
    replicas = [fleet.model(name).current.replicas["a:1"] for name in names]
    start = now_ns()
    asked: dict[str, list[int]] = {name: [] for name in names}
    for number in range(10_000):
        now = start + number * 20_000
        # The last model has one request in 22 ms.
        index = 49 if number % 1100 == 0 else number % 49
        request = Request(now)
        request.served = fleet.model(names[index])
        request.replica_set = request.served.current
        attempt = accounts.begin(request, replicas[index], now)
        if attempt.asks:
            asked[names[index]].append(number)
        accounts.end(attempt, now, failed=False)
    assert sum(map(len, asked.values())) <= 700, "every 2 ms for each model would be 4,900"
    assert len(asked["m49"]) == 10, "its last report would be old"
