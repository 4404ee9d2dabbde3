"""What is routed where: committed versions with the committed digest alone, every route pinned, none left dangling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xds_fleets import clusters_of, worker

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.control.xds import messages
from isochrone.control.xds.resources import CDS, EDS, ENVOY, LDS, RDS, Resources, resources_of
from isochrone.control.xds.snapshot import RoutedFleet, ServingWorker, routed_fleet
from isochrone.protocol.headers.version_pins import DOMAIN, model_authority, pin_of

VERSIONS = st.sampled_from(["1", "2", "3"])
DIGESTS = st.sampled_from(["good", "bad", ""])
NAMES = st.sampled_from(["solo", "Solo", "a/b c", "käse", "x.y;z", "v1.solo"])
SERVED = st.dictionaries(NAMES, st.dictionaries(VERSIONS, DIGESTS), max_size=6)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    split = Split(
        draw(VERSIONS), "good", draw(st.sampled_from([0.0, 0.05, 1.0])), header=draw(st.sampled_from(["", "X-Try"]))
    )
    return Assignment(
        draw(VERSIONS),
        "good",
        draw(st.sampled_from(["", "1", "2"])),
        "good",
        canary=draw(st.none() | st.just(split)),
        stages=tuple(draw(st.lists(NAMES, max_size=2))),
    )


EPOCHS = st.builds(EpochRecord, st.integers(1, 99), st.dictionaries(NAMES, assignments(), max_size=6))
WORKERS = st.lists(st.tuples(SERVED, st.booleans()), max_size=4)


def _routes(found: Resources, name: str) -> list[Any]:
    (host,) = messages.RouteConfiguration.FromString(found.messages[RDS][name]).virtual_hosts
    return list(host.routes)


def _endpoints(found: Resources, cluster: str) -> set[tuple[int, str]]:
    assignment = messages.ClusterLoadAssignment.FromString(found.messages[EDS][cluster])
    assert assignment.cluster_name == cluster
    return {
        (each.endpoint.address.socket_address.port_value, each.endpoint.hostname)
        for region in assignment.endpoints
        for each in region.lb_endpoints
    }


@given(EPOCHS, WORKERS)
def test_every_endpoint_serves_what_is_committed_and_every_route_leads_somewhere(
    epoch: EpochRecord, served: list[tuple[dict[str, dict[str, str]], bool]]
) -> None:
    workers = [worker(number, each, answers=answers) for number, (each, answers) in enumerate(served)]
    fleet = routed_fleet(epoch, workers)
    found = resources_of(fleet)
    assert found == resources_of(routed_fleet(epoch, reversed(workers))), "the same state gives the same bytes"
    assert found.messages[CDS].keys() == found.messages[EDS].keys()
    for name, routes in found.messages[RDS].items():
        assert clusters_of(routes) == found.clusters[name] <= found.messages[CDS].keys()
    assert {ENVOY, *found.messages[LDS]} == {ENVOY, DOMAIN, *map(model_authority, epoch.models)}
    assert found.messages[LDS].keys() == found.messages[RDS].keys() - {ENVOY}
    for name, model in fleet.models.items():
        assignment = epoch.models[name]
        committed = {assignment.version, assignment.previous or assignment.version}
        committed |= {assignment.canary.version} if assignment.canary is not None else set()
        assert model.versions.keys() == committed
        for version, routed in model.versions.items():
            for endpoint in routed.grpc:
                serving = workers[endpoint.port - 9000].served
                assert serving[name][version] == "good"
                needed = pin_of(_only_host(found, name, version).encode())
                assert needed is not None
                assert (needed.model, needed.version) == (name, version)
                for stage, at in (needed.stages or {}).items():
                    assert at in serving.get(stage, {})
            # If all that have it are silent, they are all that there is.
            answering = {workers[endpoint.port - 9000].answers for endpoint in routed.grpc}
            assert len(answering) <= 1


@given(st.lists(st.tuples(EPOCHS, WORKERS), min_size=2, max_size=4))
def test_what_is_made_of_changes_is_what_is_made_of_everything(
    moments: list[tuple[EpochRecord, list[tuple[dict[str, dict[str, str]], bool]]]],
) -> None:
    made = None
    for number, (epoch, served) in enumerate(moments):
        fleet = routed_fleet(epoch, [worker(at, each, answers=well) for at, (each, well) in enumerate(served)])
        again = resources_of(fleet, number, made)
        assert again == resources_of(fleet, number)
        made = again
        same = resources_of(fleet, number + 1, made)
        for kind, values in same.messages.items():
            assert values is made.messages[kind]


def test_a_change_of_one_model_leaves_the_others_as_they_are() -> None:
    def made(before: Resources | None, **served: str) -> Resources:
        models = {name: {version: "d"} for name, version in served.items()}
        epoch = EpochRecord(1, {name: Assignment("1", "d", "2", "d") for name in "ab"})
        return resources_of(routed_fleet(epoch, [worker(0, models)]), 0, before)

    first = made(None, a="1", b="1")
    second = made(first, a="1", b="2")
    for kind in (CDS, LDS, RDS):
        assert second.messages[kind] is first.messages[kind], "endpoints alone have changed"
    for name, value in second.messages[EDS].items():
        assert (value is first.messages[EDS][name]) is name.startswith("a/")


def _only_host(found: Resources, model: str, version: str) -> str:
    cluster = next(
        each
        for each in found.messages[EDS]
        if each.endswith(f"/{version}/grpc")
        and any((pin := pin_of(host.encode())) and pin.model == model for _, host in _endpoints(found, each))
    )
    (host,) = {host for _, host in _endpoints(found, cluster)}
    return host


def _fleet(**fields: Any) -> Resources:
    workers = [worker(number, {"solo": {"1": "d1", "2": "d2", "3": "d3"}}) for number in range(2)]
    return resources_of(routed_fleet(EpochRecord(5, {"solo": Assignment("2", "d2", "1", "d1", **fields)}), workers))


def _taken(routes: list[Any], path: str, **headers: str) -> Any:
    """The first route of a request, as Envoy matches them; without those for a share."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for route in routes:
        prefix = route.match.path_separated_prefix
        if prefix and path != prefix and not path.startswith(prefix + "/"):
            continue
        is_grpc = path.startswith("/inference.")
        if bool(prefix) is is_grpc or route.match.HasField("runtime_fraction"):
            continue
        if all(_matches(each, named.get(each.name)) for each in route.match.headers):
            return route
    return None


def _matches(matcher: Any, value: str | None) -> bool:
    if matcher.present_match:
        return (value is not None) is not matcher.invert_match
    return value == matcher.string_match.exact


def test_http_requests_are_pinned_in_their_path() -> None:
    routes = _routes(_fleet(), ENVOY)
    plain = _taken(routes, "/v2/models/solo/infer").route
    assert (plain.cluster, plain.prefix_rewrite) == ("solo/2/http", "/v2/models/solo/versions/2")
    named = _taken(routes, "/v2/models/solo/versions/1/infer").route
    assert (named.cluster, named.prefix_rewrite) == ("solo/1/http", "")
    unknown = _taken(routes, "/v2/models/solo/versions/9/infer")
    assert unknown.direct_response.status == 404
    assert "no such version" in unknown.direct_response.body.inline_string
    assert _taken(routes, "/v2/models/solo2/infer") is None
    assert _taken(routes, "/v2/repository/index") is None, "control calls are not routed"


def test_grpc_calls_are_pinned_by_the_name_of_their_endpoint() -> None:
    found = _fleet()
    own, call = _routes(found, model_authority("solo")), "/inference.GRPCInferenceService/ModelInfer"
    assert all(each.route.auto_host_rewrite.value for each in own)
    assert _taken(own, call).route.cluster == "solo/2/grpc"
    for named, version in (("solo", "2"), ("solo=1", "1"), ("solo=2", "2")):
        assert _taken(own, call, x_isochrone_model=named).route.cluster == f"solo/{version}/grpc"
    for named in ("solo=3", "other", ""):
        assert _taken(own, call, x_isochrone_model=named) is None, "never another version than the one that was named"
    assert _endpoints(found, "solo/2/grpc") == {(port, f"v2.solo.{DOMAIN}") for port in (9000, 9001)}
    assert _endpoints(found, "solo/1/http") == {(port, "") for port in (8000, 8001)}
    for name in (ENVOY, DOMAIN):
        assert _taken(_routes(found, name), call, x_isochrone_model="solo").route.cluster == "solo/2/grpc"
        assert _taken(_routes(found, name), call) is None, "the model of a call is not known without metadata"


def test_a_canary_gets_its_share_and_requests_may_choose() -> None:
    found = _fleet(canary=Split("3", "d3", 0.05, header="X-Canary"))
    *_, weighted = _routes(found, model_authority("solo"))
    weights = {each.name: each.weight.value for each in weighted.route.weighted_clusters.clusters}
    assert weights == {"solo/2/grpc": 950_000, "solo/3/grpc": 50_000}
    envoy = _routes(found, ENVOY)
    (share,) = [each for each in envoy if each.match.HasField("runtime_fraction")]
    assert share.match.runtime_fraction.default_value.numerator == 50_000
    assert share.route.prefix_rewrite == "/v2/models/solo/versions/3"
    for word, version in (("always", "3"), ("never", "2")):
        route = _taken(envoy, "/v2/models/solo/infer", x_canary=word).route
        assert (route.cluster, route.prefix_rewrite) == (f"solo/{version}/http", f"/v2/models/solo/versions/{version}")
    absent = _fleet(canary=Split("7", "d7", 0.5))
    *_, plain = _routes(absent, model_authority("solo"))
    assert plain.route.cluster == "solo/2/grpc", "a version that no worker serves gets no share"


def test_stages_of_an_ensemble_are_pinned_and_callers_cannot_say_them() -> None:
    epoch = EpochRecord(
        5, {"chain": Assignment("1", "c", stages=("a", "b")), "a": Assignment("4", "a4"), "b": Assignment("2", "b2")}
    )
    everything = {"chain": {"1": "c"}, "a": {"4": "a4", "5": "a5"}, "b": {"2": "b2"}}
    lacking = {**everything, "a": {"5": "a5"}}
    found = resources_of(routed_fleet(epoch, [worker(0, everything), worker(1, lacking)]))
    assert _endpoints(found, "chain/1/grpc") == {(9000, f"v1.chain;a=4,b=2.{DOMAIN}")}
    chain = _taken(_routes(found, ENVOY), "/v2/models/chain/infer")
    assert [(each.header.key, each.header.value) for each in chain.request_headers_to_add] == [
        ("x-isochrone-stages", "a=4,b=2")
    ]
    plain = _taken(_routes(found, ENVOY), "/v2/models/a/infer")
    assert list(plain.request_headers_to_remove) == ["x-isochrone-stages"]


def test_servers_of_other_kinds_serve_http_only() -> None:
    triton = ServingWorker(WorkerRecord("t", "10.0.0.1", 8000, 8001, kind="triton"), "10.0.0.1", {"solo": {"2": ""}})
    epoch = EpochRecord(1, {"solo": Assignment("2", "config-abc")})
    found = resources_of(routed_fleet(epoch, [triton]))
    assert _endpoints(found, "solo/2/http") == {(8000, "")}
    assert _endpoints(found, "solo/2/grpc") == set()


def test_regions_count_as_much_as_they_have_workers() -> None:
    served = {"solo": {"1": "d"}}
    workers = [
        ServingWorker(WorkerRecord(f"w{n}", "10.0.0.1", 8000 + n, 9000 + n, region=region), "10.0.0.1", served)
        for n, region in enumerate(("north", "south", "north"))
    ]
    found = resources_of(routed_fleet(EpochRecord(1, {"solo": Assignment("1", "d")}), workers))
    assignment = messages.ClusterLoadAssignment.FromString(found.messages[EDS]["solo/1/http"])
    assert [(each.locality.region, each.load_balancing_weight.value) for each in assignment.endpoints] == [
        ("north", 2),
        ("south", 1),
    ]


def _committed(version: str, served: dict[str, str], before: RoutedFleet | None = None, **fields: Any) -> RoutedFleet:
    """Epoch ``version``; ``other`` is always served."""
    epoch = EpochRecord(int(version), {"solo": Assignment(version, "d", **fields), "other": Assignment(version, "")})
    everything = {"solo": served, "other": dict.fromkeys("123", "")}
    return routed_fleet(epoch, [worker(0, everything)], before)


def test_a_model_keeps_its_route_until_a_worker_has_the_new_version() -> None:
    first = _committed("1", {"1": "d"})
    assert first.kept == frozenset()
    second = _committed("2", {"1": "d"}, first)
    assert (second.epoch, second.kept) == (2, {"solo"})
    assert second.models["solo"] == first.models["solo"]
    assert second.models["other"].version == "2", "others do not wait for it"
    # One more commit, and the version is still that of two epochs ago.
    third = _committed("3", {"1": "d"}, second)
    assert (third.kept, third.models["solo"].version) == ({"solo"}, "1")
    ready = _committed("3", {"1": "d", "3": "d"}, third)
    assert (ready.kept, ready.models["solo"].version) == (frozenset(), "3")
    # Back to an earlier version is a commit as any other.
    assert _committed("1", {"3": "d"}, ready).models["solo"].version == "3"


@pytest.mark.parametrize(
    ("before", "served"),
    [
        pytest.param(None, {"1": "d"}, id="nothing was routed before"),
        pytest.param(_committed("1", {"1": "d"}), {}, id="the former version is gone, too"),
        pytest.param(_committed("1", {"1": "d"}), {"1": "another"}, id="it is not what was committed"),
        pytest.param(_committed("1", {}), {}, id="it was not served before"),
        pytest.param(_committed("2", {"2": "d"}), {"2": "another"}, id="the version is the same"),
    ],
)
def test_a_route_is_kept_for_a_version_that_is_served_alone(before: RoutedFleet | None, served: dict[str, str]) -> None:
    found = _committed("2", served, before)
    assert (found.kept, found.models["solo"].version) == (frozenset(), "2")


def test_a_kept_route_is_to_the_workers_that_serve_it_now() -> None:
    before = routed_fleet(
        EpochRecord(1, {"solo": Assignment("1", "d")}), [worker(number, {"solo": {"1": "d"}}) for number in range(2)]
    )
    epoch = EpochRecord(2, {"solo": Assignment("2", "d", "1", "d")})
    found = routed_fleet(epoch, [worker(0, {}), worker(1, {"solo": {"1": "d"}})], before)
    assert _endpoints(resources_of(found), "solo/1/http") == {(8001, "")}
    assert "solo/2/http" not in resources_of(found).messages[CDS]


SERVING = {"solo": {"1": "d"}}


def _ports(*workers: ServingWorker) -> list[int]:
    found = resources_of(routed_fleet(EpochRecord(1, {"solo": Assignment("1", "d")}), workers))
    ports = sorted(port for port, _ in _endpoints(found, "solo/1/http"))
    assert sorted(port for port, _ in _endpoints(found, "solo/1/grpc")) == [port + 1000 for port in ports]
    return ports


def test_standby_workers_serve_while_no_other_one_answers() -> None:
    serving, spare = worker(0, SERVING), worker(1, SERVING, standby=True)
    silent, silent_spare = worker(2, SERVING, answers=False), worker(3, SERVING, standby=True, answers=False)
    assert _ports(serving, spare, silent, silent_spare) == [8000]
    assert _ports(spare, silent, silent_spare) == [8001], "all that serve are dead"
    assert _ports(silent, silent_spare) == [8002, 8003], "nobody answers this controller"
    assert _ports(worker(0, {}), spare) == [8001], "it alone has the version"
    # Promotion and demotion.
    assert _ports(serving, worker(1, SERVING)) == [8000, 8001]
    assert _ports(worker(0, SERVING, standby=True), worker(1, SERVING)) == [8001]


def test_the_canary_of_standby_workers_alone_gets_its_share() -> None:
    epoch = EpochRecord(1, {"solo": Assignment("1", "d", canary=Split("2", "d", 0.5))})
    both = {"solo": {"1": "d", "2": "d"}}
    found = routed_fleet(epoch, [worker(0, SERVING), worker(1, both, standby=True)]).models["solo"]
    assert found.canary == "2"
    assert [each.port for each in found.versions["2"].http] == [8001]
    assert [each.port for each in found.versions["1"].http] == [8000]


def test_an_address_is_an_endpoint_once() -> None:
    """A worker has started again under another name, and the lease of the old record has not ended."""
    twice = [
        ServingWorker(WorkerRecord(name, "10.0.0.1", 8000, 9000, region=region), "10.0.0.1", SERVING)
        for name, region in (("old", "north"), ("new", "south"), ("newer", "south"))
    ]
    found = resources_of(routed_fleet(EpochRecord(1, {"solo": Assignment("1", "d")}), [*twice, worker(1, SERVING)]))
    for protocol, port in (("http", 8000), ("grpc", 9000)):
        assignment = messages.ClusterLoadAssignment.FromString(found.messages[EDS][f"solo/1/{protocol}"])
        ports = [
            each.endpoint.address.socket_address.port_value
            for region in assignment.endpoints
            for each in region.lb_endpoints
        ]
        assert sorted(ports) == [port, port + 1]


def test_a_canary_without_endpoints_for_grpc_has_its_share_of_http_alone() -> None:
    triton = ServingWorker(
        WorkerRecord("t", "10.0.0.1", 8500, 8501, kind="triton"), "10.0.0.1", {"solo": {"1": "d", "2": "d"}}
    )
    epoch = EpochRecord(1, {"solo": Assignment("1", "d", canary=Split("2", "d", 0.5, header="X-Try"))})
    found = resources_of(routed_fleet(epoch, [worker(0, SERVING), triton]))
    call = "/inference.GRPCInferenceService/ModelInfer"
    *_, plain = _routes(found, model_authority("solo"))
    assert plain.route.cluster == "solo/1/grpc"
    assert _taken(_routes(found, ENVOY), call, x_isochrone_model="solo", x_try="always").route.cluster == "solo/1/grpc"
    assert _taken(_routes(found, ENVOY), "/v2/models/solo", x_try="always").route.cluster == "solo/2/http"


def test_no_epoch_is_an_empty_fleet() -> None:
    found = resources_of(routed_fleet(EpochRecord(0), []))
    assert found.messages[CDS] == {}
    assert _routes(found, ENVOY) == []


def test_clusters_notice_dead_connections_and_do_not_judge_answers() -> None:
    found = _fleet()
    for name, value in found.messages[CDS].items():
        cluster = messages.Cluster.FromString(value)
        (options,) = cluster.typed_extension_protocol_options.values()
        explicit = messages.HttpProtocolOptions.FromString(options.value).explicit_http_config
        alive = explicit.http2_protocol_options.connection_keepalive
        assert explicit.HasField("http2_protocol_options") is name.endswith("/grpc")
        assert (alive.interval.seconds > 0, alive.timeout.seconds > 0) == (name.endswith("/grpc"),) * 2
        outliers = cluster.outlier_detection
        assert outliers.split_external_local_origin_errors
        assert outliers.consecutive_local_origin_failure.value > 0
        # Present and 0: the defaults would eject workers that refuse what would be late.
        for never in ("consecutive_5xx", "success_rate", "local_origin_success_rate"):
            field = f"enforcing_{never}"
            assert outliers.HasField(field)
            assert getattr(outliers, field).value == 0
