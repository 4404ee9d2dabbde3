"""The discovery protocol of one client: nothing is taken away that it uses, nothing is sent twice, and it comes to an
end, whatever crosses on the way and whatever the client rejects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xds_fleets import (
    SimulatedClient,
    SimulatedEnvoy,
    SimulatedGrpc,
    SimulatedGrpcOfTwo,
    resources,
    resources_by_model,
    without_previous,
)

from isochrone.control.xds.ads import MOST_NAMES, AdsClient, Request
from isochrone.control.xds.resources import CDS, EDS, ENVOY, LDS, RDS, Resources
from isochrone.errors import InvalidArgument
from isochrone.protocol.headers.version_pins import DOMAIN, model_authority

SOLO, OTHER = model_authority("solo"), model_authority("other")
CLIENTS = st.sampled_from([SimulatedEnvoy, SimulatedGrpc, SimulatedGrpcOfTwo])
#: A step: a new epoch or set of workers, or a message that arrives at one end; sometimes the client rejects it.
STEPS = st.lists(
    st.sampled_from(["commit", "commit other", "workers", *(["server", "client"] * 4), "reject"]),
    min_size=10,
    max_size=80,
)


@settings(max_examples=120)
@given(CLIENTS, st.booleans(), STEPS)
def test_a_client_never_routes_to_what_it_does_not_have_and_comes_to_the_present(
    kind: type[SimulatedClient], is_settled: bool, steps: list[str]
) -> None:
    client = kind()
    epoch, workers, versions = 1, 2, {"solo": 1, "other": 1}
    current = resources_by_model(epoch, workers, **versions)
    if is_settled:
        client.settle(current)
    for step in steps:
        if step.startswith("commit"):
            # Versions one after the other, so that each leaves after two commits.
            model = "other" if step == "commit other" else "solo"
            epoch, versions[model] = epoch + 1, versions[model] % 9 + 1
        elif step == "workers":
            workers = workers % 4 + 1
        if step.startswith("commit") or step == "workers":
            current = resources_by_model(epoch, workers, **versions)
            client.publish(current)
        elif step == "server":
            client.deliver_to_server(current)
        else:
            client.deliver_to_client(rejects=step == "reject")
        assert not client.broken(), step
        if client.routed:
            # A client that has no routes yet may count as one of an epoch that it then skips.
            heard, used = client.server.epoch, client.epochs_used
            assert heard in used or heard < min(used, default=epoch), "the leader hears what the client routes by"
    # A rejected response is not sent again by itself; the next change is.
    for extra in (1, 2):
        current = resources(epoch + extra, 10 + extra, 5, ("solo", "other"))
        client.settle(current)
    assert not client.broken()
    for routes in client.routes:
        assert client.has[RDS][routes] == current.messages[RDS][routes]
    assert {name: client.has[EDS][name] for name in client.routed} == {
        name: current.messages[EDS][name] for name in client.routed
    }
    assert client.server.epoch == current.epoch
    assert kind is not SimulatedEnvoy or client.has[CDS] == current.messages[CDS], "old clusters go in the end"
    before = client.responses
    client.settle(current)
    assert client.responses == before, "nothing is sent for what has not changed"


@given(CLIENTS)
def test_a_client_that_rejects_keeps_what_it_has_and_is_not_asked_again(kind: type[SimulatedClient]) -> None:
    client = kind()
    client.settle(resources(1, 1, models=("solo", "other")))
    later = resources(2, 2, models=("solo", "other"))
    client.publish(later)
    for _ in range(50):
        client.deliver_to_client(rejects=True)
        client.deliver_to_server(later)
    sent = client.responses
    for _ in range(50):
        client.publish(later)
        client.deliver_to_client(rejects=True)
        client.deliver_to_server(later)
    assert client.responses == sent, "no loop"
    assert not client.broken()
    assert client.server.epoch == 1, "it does not route by what it rejected"


def test_an_acknowledgement_of_one_model_is_none_of_another() -> None:
    """The client rejects the new routes of one model, and takes those of the other."""
    names = (SOLO, OTHER)
    client, _ = _subscribed(RDS, *names)
    (first,) = client.due(resources_by_model(1, solo=1, other=1))
    client.receive(Request(RDS, names, first.nonce))
    client.due(resources_by_model(1, solo=1, other=1))
    assert client.epoch == 1
    second = resources_by_model(2, solo=2, other=1)
    (response,) = client.due(second)
    assert list(response.resources) == [SOLO]
    client.receive(Request(RDS, names, response.nonce, "I do not like it"))
    third = resources_by_model(3, solo=2, other=2)
    (response,) = client.due(third)
    assert list(response.resources) == [OTHER]
    client.receive(Request(RDS, names, response.nonce))
    assert client.due(third) == [], "what it rejected is not sent again"
    assert client.epoch == 1, "it routes by epoch 1 for one of its models"
    fourth = resources_by_model(4, solo=3, other=2)
    (response,) = client.due(fourth)
    client.receive(Request(RDS, names, response.nonce))
    client.due(fourth)
    assert client.epoch == 4


def test_clusters_of_routes_that_stand_after_a_rejection_stay() -> None:
    names = (SOLO, OTHER)
    client, first = AdsClient(), resources_by_model(1, solo=1, other=1)
    subscribed = {CDS: (), EDS: tuple(first.messages[EDS]), RDS: names}

    def answer(current: Resources, **rejected: str) -> None:
        for _ in range(8):
            for response in client.due(current):
                kind = response.type_url
                if kind == CDS:
                    held.clear()
                    held.update(response.resources)
                    subscribed[EDS] = tuple(held)
                error = "no" if kind == RDS and rejected.get("routes") in response.resources else None
                client.receive(Request(kind, subscribed[kind], response.nonce, error))
                if kind == CDS:
                    client.receive(Request(EDS, subscribed[EDS], "stale"))

    held: dict[str, bytes] = {}
    for kind, wanted in subscribed.items():
        client.receive(Request(kind, wanted))
    answer(first)
    assert client.epoch == 1
    answer(resources_by_model(2, solo=2, other=1), routes=SOLO)
    for epoch, other in ((3, 2), (4, 3)):
        answer(resources_by_model(epoch, solo=3, other=other), routes=SOLO)
        assert "solo/1/grpc" in held, "it routes by epoch 1 still"
    answer(resources_by_model(5, solo=4, other=3))
    assert "solo/1/grpc" not in held
    assert client.epoch == 5


def _subscribed(kind: str, *names: str) -> tuple[AdsClient, Request]:
    request = Request(kind, names)
    client = AdsClient()
    client.receive(request)
    return client, request


def test_envoys_order_is_clusters_endpoints_listeners_routes() -> None:
    client, current = AdsClient(), resources(1, 1)
    client.own_listener = {ENVOY: b"a listener"}
    for kind, names in ((RDS, (ENVOY,)), (LDS, ()), (EDS, tuple(current.messages[EDS])), (CDS, ())):
        client.receive(Request(kind, names))
    first = client.due(current)
    assert [each.type_url for each in first] == [CDS, EDS, LDS], "routes wait for what they name"
    clusters, endpoints, _ = first
    client.receive(Request(CDS, (), clusters.nonce))
    assert client.due(current) == []
    client.receive(Request(EDS, tuple(endpoints.resources), endpoints.nonce))
    assert [each.type_url for each in client.due(current)] == [RDS]


def test_endpoints_are_sent_again_with_a_cluster_that_changed() -> None:
    client, current = AdsClient(), resources(1, 1)
    client.receive(Request(CDS))
    client.receive(Request(EDS, ("solo/1/http",)))
    for response in client.due(current):
        names = tuple(response.resources) if response.type_url == EDS else ()
        client.receive(Request(response.type_url, names, response.nonce))
    clusters = {**current.messages[CDS], "solo/1/http": b"another policy"}
    changed = type(current)(1, "1.2", {**current.messages, CDS: clusters}, current.clusters)
    assert [(each.type_url, sorted(each.resources)) for each in client.due(changed)] == [
        (CDS, ["solo/1/grpc", "solo/1/http"]),
        (EDS, ["solo/1/http"]),
    ]


def test_one_response_of_a_type_is_under_way_and_the_next_is_the_newest() -> None:
    client, _ = _subscribed(EDS, "solo/1/grpc")
    (first,) = client.due(resources(1, 1, workers=1))
    for workers in (2, 3, 4):
        assert client.due(resources(1, 1, workers=workers)) == [], "no queue for a slow client"
    client.receive(Request(EDS, ("solo/1/grpc",), first.nonce))
    (second,) = client.due(resources(1, 1, workers=4))
    assert second.resources["solo/1/grpc"] == resources(1, 1, workers=4).messages[EDS]["solo/1/grpc"]
    # An old nonce is neither an acknowledgement of the new response nor a rejection.
    client.receive(Request(EDS, ("solo/1/grpc",), first.nonce))
    assert client.receive(Request(EDS, ("solo/1/grpc",), first.nonce, "late")) is None
    assert client.due(resources(1, 1, workers=5)) == []


def test_a_cluster_stays_while_routes_that_name_it_may_be_in_use() -> None:
    """The client uses routes before the server has its acknowledgement."""
    envoy = SimulatedEnvoy()
    envoy.settle(resources(1, 1))
    second, fourth = resources(2, 2), resources(4, 4)
    envoy.publish(second)
    while "solo/2/http" not in envoy.routed:
        envoy.deliver_to_client()
        if envoy.to_server and envoy.to_server[0].type_url != RDS:
            envoy.deliver_to_server(second)
    # Two commits later version 2 is in no epoch, and the acknowledgement is still on its way.
    envoy.publish(fourth)
    for _ in range(9):
        envoy.deliver_to_client()
        assert not envoy.broken()
    envoy.settle(fourth)
    assert "solo/2/http" not in envoy.has[CDS]


def test_unknown_names_are_answered_where_absence_is_an_answer() -> None:
    client, _ = _subscribed(LDS, "nobody")
    (response,) = client.due(resources(1, 1))
    assert response.resources == {}
    client.receive(Request(LDS, ("nobody",), response.nonce))
    assert client.due(resources(2, 2)) == [], "still nobody"
    client.receive(Request(LDS, ("nobody", DOMAIN), response.nonce))
    (response,) = client.due(resources(2, 2))
    assert list(response.resources) == [DOMAIN]
    for kind in (EDS, RDS):
        assert _subscribed(kind, "nobody")[0].due(resources(1, 1)) == []


def test_a_model_that_is_retired_is_gone() -> None:
    client, _ = _subscribed(LDS, SOLO)
    (response,) = client.due(resources(1, 1))
    client.receive(Request(LDS, (SOLO,), response.nonce))
    (response,) = client.due(resources(2, 1, models=("other",)))
    assert response.resources == {}


def test_names_are_unsubscribed() -> None:
    client, _ = _subscribed(EDS, "solo/1/grpc", "solo/1/http")
    (response,) = client.due(resources(1, 1, workers=1))
    client.receive(Request(EDS, ("solo/1/http",), response.nonce))
    (response,) = client.due(resources(1, 1, workers=2))
    assert list(response.resources) == ["solo/1/http"]
    client.receive(Request(EDS, (), response.nonce))
    assert client.due(resources(1, 1, workers=3)) == [], "nothing is subscribed to: not everything"


def test_everything_can_be_named_by_a_star() -> None:
    client, _ = _subscribed(CDS, "*")
    (response,) = client.due(resources(1, 1))
    assert sorted(response.resources) == ["solo/1/grpc", "solo/1/http"]


def test_nonsense_is_ignored_or_refused_and_bounded() -> None:
    client = AdsClient()
    for number in range(1000):
        assert client.receive(Request(f"type.googleapis.com/nonsense{number}", ("x",))) is None
    assert client.due(resources(1, 1)) == []
    assert len(client.ignored) <= 16
    with pytest.raises(InvalidArgument, match="expected at most 10000 names that do not exist, given 10001"):
        client.receive(Request(CDS, tuple(str(number) for number in range(MOST_NAMES + 1))))
    # A first request may carry the nonce of an earlier stream, even as a rejection.
    assert client.receive(Request(CDS, (), "17", "an error of yesterday")) is None
    (response,) = client.due(resources(1, 1))
    rejection = client.receive(Request(CDS, (), response.nonce, "no"))
    assert rejection is not None
    assert (rejection.type_url, rejection.version, rejection.message) == (CDS, "1.1", "no")
    assert client.receive(Request(CDS, (), response.nonce, "no, again")) is None, "one response, one rejection"


def test_names_that_exist_are_not_counted() -> None:
    """Envoy names every cluster of a fleet when it asks for endpoints, on a new stream before anything was sent."""
    known = {f"{number}/1/http": b"endpoints" for number in range(3 * MOST_NAMES)}
    current = Resources(1, "1.1", {EDS: known})
    client = AdsClient()
    client.receive(Request(EDS, tuple(known)), current)
    (response,) = client.due(current)
    assert len(response.resources) == len(known)
    absent = tuple(str(number) for number in range(MOST_NAMES))
    # Those that it was sent are none of its making either, once they are gone.
    gone = Resources(2, "2.2", {EDS: {}})
    client.receive(Request(EDS, (*known, *absent), response.nonce), gone)
    with pytest.raises(InvalidArgument, match="given 10001"):
        client.receive(Request(EDS, (*known, *absent, "one more"), response.nonce), gone)
    with pytest.raises(InvalidArgument, match="given 30000"):
        AdsClient().receive(Request(EDS, tuple(known)), gone)
    assert AdsClient().receive(Request(CDS, ("twice",) * 3 * MOST_NAMES)) is None


def test_what_is_dropped_and_asked_for_again_is_sent_again() -> None:
    """Both requests cross a response, so that neither has its nonce."""
    client, _ = _subscribed(EDS, "solo/1/grpc", "solo/1/http")
    (first,) = client.due(resources(1, 1, workers=1))
    client.receive(Request(EDS, tuple(first.resources), first.nonce))
    (second,) = client.due(resources(1, 1, workers=2))
    assert len(second.resources) == 2
    client.receive(Request(EDS, ("solo/1/http",), first.nonce))
    client.receive(Request(EDS, ("solo/1/grpc", "solo/1/http"), first.nonce))
    assert client.due(resources(1, 1, workers=2)) == [], "one response is under way"
    client.receive(Request(EDS, ("solo/1/grpc", "solo/1/http"), second.nonce))
    (third,) = client.due(resources(1, 1, workers=2))
    assert list(third.resources) == ["solo/1/grpc"]


def test_absence_is_answered_again_to_a_name_that_was_dropped_meanwhile() -> None:
    client, _ = _subscribed(LDS, SOLO, "nobody")
    (response,) = client.due(resources(1, 1))
    client.receive(Request(LDS, (SOLO,), response.nonce))
    assert client.due(resources(1, 1)) == []
    client.receive(Request(LDS, (SOLO, "nobody"), response.nonce))
    (response,) = client.due(resources(1, 1))
    assert list(response.resources) == [SOLO]


def test_a_client_that_returns_loses_no_cluster_before_it_has_other_routes() -> None:
    """As after a canary that ended while the stream was broken: the fleet has less than the client routes to."""
    envoy = SimulatedEnvoy()
    envoy.settle(resources(1, 2))
    assert "solo/1/http" in envoy.routed
    envoy.connect_again()
    later = without_previous(2, 2)
    assert "solo/1/http" not in later.messages[CDS]
    envoy.publish(later)
    for _ in range(20):
        envoy.deliver_to_client()
        assert not envoy.broken()
        envoy.deliver_to_server(later)
    assert envoy.routed == {"solo/2/http", "solo/2/grpc"}
    assert envoy.has[CDS] == later.messages[CDS]
    assert envoy.server.epoch == 2
    # And where the new routes need clusters that it does not have, these come first.
    envoy.connect_again()
    third = resources(3, 3)
    envoy.publish(third)
    for _ in range(20):
        envoy.deliver_to_client()
        assert not envoy.broken()
        envoy.deliver_to_server(third)
    assert envoy.server.epoch == 3


@pytest.mark.parametrize("returns", [(CDS,), (CDS, EDS), (CDS, EDS, RDS)])
def test_a_client_that_returns_with_anything_gets_its_clusters(returns: tuple[str, ...]) -> None:
    client, current = AdsClient(), resources(1, 1)
    names = {CDS: (), EDS: tuple(current.messages[EDS]), RDS: ("nobody",)}
    for kind in returns:
        client.receive(Request(kind, names[kind], version="1.1"))
    assert client.due(current)[0].type_url == CDS


class _Counted(dict[str, bytes]):
    """Resources that count how often each is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> bytes:
        self.looks += 1
        return super().__getitem__(name)

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def test_a_client_of_one_model_does_not_pay_for_the_others() -> None:
    models = tuple(f"model{number}" for number in range(100))
    client, made = SimulatedGrpc(), resources(1, 1, models=("solo", *models))
    counted = {kind: _Counted(found) for kind, found in made.messages.items()}
    current = Resources(1, "1.1", counted, made.clusters)
    client.settle(current)
    assert client.server.epoch == 1
    assert sum(found.looks for found in counted.values()) < 100


def test_an_envoy_that_has_everything_costs_nothing() -> None:
    envoy, made = SimulatedEnvoy(), resources(1, 1, models=tuple(f"model{number}" for number in range(20)))
    counted = {kind: _Counted(found) for kind, found in made.messages.items()}
    current = Resources(1, "1.1", counted, made.clusters)
    envoy.settle(current)
    envoy.settle(current)
    before = [found.looks for found in counted.values()]
    for _ in range(3):
        envoy.to_server.append(Request(EDS, envoy.names[EDS], envoy.nonces[EDS]))
        envoy.settle(current)
    assert [found.looks for found in counted.values()] == before


def test_thousands_of_subscriptions_cost_one_response() -> None:
    names = tuple(f"absent{number}" for number in range(MOST_NAMES - 1))
    client, _ = _subscribed(CDS, *names, "solo/1/grpc")
    (response,) = client.due(resources(1, 1))
    assert list(response.resources) == ["solo/1/grpc"]
    client.receive(Request(CDS, (*names, "solo/1/grpc"), response.nonce))
    assert client.due(resources(2, 1)) == []
