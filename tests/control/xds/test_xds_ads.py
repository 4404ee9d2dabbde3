"""The discovery protocol of one client: nothing is taken away that it uses, nothing is sent twice, and it comes to an
end, whatever crosses on the way and whatever the client rejects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xds_fleets import SimulatedClient, SimulatedEnvoy, SimulatedGrpc, resources

from isochrone.control.xds.ads import MOST_NAMES, AdsClient, Request
from isochrone.control.xds.resources import CDS, EDS, ENVOY, LDS, RDS
from isochrone.errors import InvalidArgument
from isochrone.protocol.version_pins import DOMAIN, model_authority

SOLO = model_authority("solo")
CLIENTS = st.sampled_from([SimulatedEnvoy, SimulatedGrpc])
#: A step: a new epoch or set of workers, or a message that arrives at one end; sometimes the client rejects it.
STEPS = st.lists(
    st.sampled_from(["commit", "workers", *(["server", "client"] * 4), "reject"]), min_size=10, max_size=80
)


@settings(max_examples=120)
@given(CLIENTS, st.booleans(), STEPS)
def test_a_client_never_routes_to_what_it_does_not_have_and_comes_to_the_present(
    kind: type[SimulatedClient], is_settled: bool, steps: list[str]
) -> None:
    client = kind()
    epoch, version, workers = 1, 1, 2
    current = resources(epoch, version, workers)
    if is_settled:
        client.settle(current)
    for step in steps:
        if step == "commit":
            # Versions one after the other, so that each leaves after two commits.
            epoch, version = epoch + 1, version % 9 + 1
        elif step == "workers":
            workers = workers % 4 + 1
        if step in ("commit", "workers"):
            current = resources(epoch, version, workers)
            client.publish(current)
        elif step == "server":
            client.deliver_to_server(current)
        else:
            client.deliver_to_client(rejects=step == "reject")
        assert not client.broken(), step
        if client.routed:
            assert client.server.epoch in (0, *client.epochs_used), "the leader hears what the client routes by"
    # A rejected response is not sent again by itself; the next change is.
    for extra in (1, 2):
        current = resources(epoch + extra, 10 + extra, 5)
        client.settle(current)
    assert not client.broken()
    routes = ENVOY if kind is SimulatedEnvoy else SOLO
    assert client.has[RDS][routes] == current.messages[RDS][routes]
    assert {name: client.has[EDS][name] for name in client.routed} == {
        name: current.messages[EDS][name] for name in client.routed
    }
    assert client.server.epoch == current.epoch
    assert kind is SimulatedGrpc or client.has[CDS] == current.messages[CDS], "old clusters go in the end"
    before = client.responses
    client.settle(current)
    assert client.responses == before, "nothing is sent for what has not changed"


@given(CLIENTS)
def test_a_client_that_rejects_keeps_what_it_has_and_is_not_asked_again(kind: type[SimulatedClient]) -> None:
    client = kind()
    client.settle(resources(1, 1))
    later = resources(2, 2)
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
    with pytest.raises(InvalidArgument, match="expected at most 10000 names, given 10001"):
        client.receive(Request(CDS, tuple(str(number) for number in range(MOST_NAMES + 1))))
    # A first request may carry the nonce of an earlier stream, even as a rejection.
    assert client.receive(Request(CDS, (), "17", "an error of yesterday")) is None
    (response,) = client.due(resources(1, 1))
    rejection = client.receive(Request(CDS, (), response.nonce, "no"))
    assert rejection is not None
    assert (rejection.type_url, rejection.version, rejection.message) == (CDS, "1.1", "no")
    assert client.receive(Request(CDS, (), response.nonce, "no, again")) is None, "one response, one rejection"


def test_thousands_of_subscriptions_cost_one_response() -> None:
    names = tuple(f"absent{number}" for number in range(MOST_NAMES - 1))
    client, _ = _subscribed(CDS, *names, "solo/1/grpc")
    (response,) = client.due(resources(1, 1))
    assert list(response.resources) == ["solo/1/grpc"]
    client.receive(Request(CDS, (*names, "solo/1/grpc"), response.nonce))
    assert client.due(resources(2, 1)) == []
