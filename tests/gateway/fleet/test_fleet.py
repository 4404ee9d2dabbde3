"""Members that come and go, and the models they bring: who is kept, who is new, and what an invented name costs."""

from __future__ import annotations

from offline import add_members, make_fleet

from isochrone.clock import MILLISECOND, SECOND
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.machine import RequestMachine
from isochrone.gateway.requests.outcomes import Outcome
from isochrone.gateway.requests.request import Request
from isochrone.gateway.rules.file import parse_rules
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.protocol.headers.stages import stages_value
from isochrone.settings.wire_limits import WireLimits

A, B = Upstream("a", 1, 1), Upstream("b", 1, 1)
M = {"m": {"1": ""}}


def test_members_by_address() -> None:
    fleet = make_fleet()
    new, gone = fleet.set_members([A, B])
    assert ([member.upstream for member in new], gone) == ([A, B], [])
    kept = fleet.members["a:1"]
    new, gone = fleet.set_members([A])
    assert (new, [member.upstream for member in gone]) == ([], [B])
    assert fleet.members == {"a:1": kept}
    assert not gone[0].endpoint.healthy


def test_another_grpc_port_is_another_server() -> None:
    fleet = make_fleet()
    fleet.set_members([A])
    before = fleet.members["a:1"]
    new, gone = fleet.set_members([Upstream("a", 1, 2)])
    assert gone == [before]
    assert fleet.members["a:1"] is new[0]


def test_the_same_again_changes_nothing() -> None:
    fleet = make_fleet()
    fleet.set_members([A, B])
    assert fleet.set_members([B, A, A]) == ([], [])


def test_a_newcomer_is_not_healthy() -> None:
    fleet = make_fleet()
    fleet.set_members([A])
    assert fleet.healthy == []


def test_invented_names_share_one_model() -> None:
    fleet = make_fleet()
    add_members(fleet, M, M)
    models = {fleet.model(f"invented{number}") for number in range(100)}
    assert models == {fleet.unknown}
    assert fleet.model("m") is fleet.model("m") is not fleet.unknown
    assert set(fleet.models) == {"m"}


def test_a_name_in_the_rules_is_a_model_whoever_serves_it() -> None:
    fleet = make_fleet(parse_rules("models: {wanted: {policy: round_robin}}", "rules.yaml"))
    add_members(fleet, M)
    assert fleet.model("wanted").rules.policy == "round_robin"


def test_an_endpoint_whose_index_is_unknown_serves_nothing() -> None:
    fleet = make_fleet()
    add_members(fleet, None)
    assert fleet.model("whatever") is fleet.unknown
    assert fleet.model("whatever").current.replicas == {}
    # Beside one that is known, nothing goes there either: not what that one serves, nor what nobody does.
    add_members(fleet, None, M)
    for name in ("m", "whatever"):
        assert list(fleet.model(name).current.replicas) == ["b:1"]


def test_in_a_led_fleet_an_unknown_index_or_digest_gets_nothing() -> None:
    fleet = make_fleet()
    fleet.lead()
    fleet.commit(1, {"m": Commitment(1, "1", {"1": "good"})})
    add_members(fleet, None, {"m": {"1": ""}}, {"m": {"1": "other"}}, {"m": {"1": "good"}})
    eligible = fleet.model("m").current.balancer.eligible
    assert [replica.endpoint.address for replica in eligible] == ["d:1"]


def test_a_triton_has_no_digest_and_serves_by_that_of_its_configuration() -> None:
    fleet = make_fleet()
    fleet.lead()
    fleet.commit(1, {"m": Commitment(1, "1", {"1": "config-abc"})})
    add_members(fleet, {"m": {"1": ""}}, {"m": {"1": "other"}}, None)
    eligible = fleet.model("m").current.balancer.eligible
    assert [replica.endpoint.address for replica in eligible] == ["a:1"]


def test_a_probe_is_news_for_every_model_of_the_server() -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}, "n": {"1": ""}}, M)
    replica_sets = [fleet.model(name).current for name in ("m", "n")]
    replica_sets[0].balancer.reported(replica_sets[0].replicas["a:1"], LoadReport(1, 1, wait_ns=7, run_ns=9), 5)
    fleet.reported(fleet.members["a:1"], LoadReport(4, 2), 10)
    for replica_set in replica_sets:
        replica_set.catch_up(10)
    reports = [replica_set.replicas["a:1"].report for replica_set in replica_sets]
    assert [(report.in_flight, report.queue) for report in reports] == [(4, 2), (4, 2)]
    # What only an answer of the model can tell is kept; of its wait, 5 ns are over.
    assert (reports[0].wait_ns, reports[0].run_ns) == (2, 9)
    assert replica_sets[0].replicas["b:1"].reported_at == 0


def test_probes_do_not_renew_a_wait_that_is_over() -> None:
    fleet = make_fleet()
    add_members(fleet, M, M)
    replica_set = fleet.model("m").current
    replica = replica_set.replicas["a:1"]
    replica_set.balancer.reported(replica, LoadReport(4, 3, wait_ns=50 * MILLISECOND, run_ns=MILLISECOND), SECOND)
    for passed in (20, 40, 60, 150, 240):
        now = SECOND + passed * MILLISECOND
        fleet.reported(fleet.members["a:1"], LoadReport(1, 1), now)
        replica_set.catch_up(now)
        assert replica.report.wait_ns == max(0, 50 - passed) * MILLISECOND
        assert replica.expected_ns(now) == (max(0, 50 - passed) + 1) * MILLISECOND


def test_a_worker_that_says_it_drains_gets_nothing_new() -> None:
    fleet = make_fleet()
    add_members(fleet, M, M)
    replica_set = fleet.model("m").current
    fleet.reported(fleet.members["a:1"], LoadReport(0, 0, draining=True), 10)
    replica_set.catch_up(10)
    assert [replica.endpoint.address for replica in replica_set.balancer.eligible] == ["b:1"]
    fleet.reported(fleet.members["a:1"], LoadReport(0, 0), 20)
    replica_set.catch_up(20)
    assert len(replica_set.balancer.eligible) == 2


def test_what_would_not_be_answered_is_told_with_the_reason() -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    fleet = gateway.fleet
    fleet.lead()
    stages = {"1": stages_value({"m": "1"})}
    committed = {"m": Commitment(1, "1", {"1": "a"}), "e": Commitment(1, "1", {"1": "b"}, stages=stages)}
    fleet.commit(1, committed)
    assert set(gateway.unserved()) == {"m", "e"}
    # The ensemble is there, its stage is not, or is another one: neither would be answered.
    for serves in ({"e": {"1": "b"}}, {"e": {"1": "b"}, "m": {"1": "other"}}):
        add_members(fleet, serves)
        assert set(gateway.unserved()) == {"m", "e"}
        assert not gateway.is_model_ready("e", "")
    add_members(fleet, {"e": {"1": "b"}, "m": {"1": "a"}})
    assert gateway.unserved() == {}
    assert gateway.is_model_ready("e", "")
    member = fleet.members["a:1"]
    member.endpoint.healthy, member.fault = False, "Connection refused"
    fleet.rebuild()
    assert set(gateway.unserved()) == {"m", "e"}
    assert "a:1: Connection refused" in gateway.unserved()["m"]
    assert gateway.worker_faults() == {"a:1": "Connection refused"}


def test_a_worker_with_other_files_is_told_though_others_serve_the_model() -> None:
    gateway = Gateway(GatewayRules(), WireLimits())
    fleet = gateway.fleet
    fleet.lead()
    fleet.commit(1, {"m": Commitment(1, "1", {"1": "a" * 64, "2": "b" * 64}), "n": Commitment(1, "1", {"1": "c"})})
    right = {"m": {"1": "a" * 64}, "n": {"1": "c"}}
    # Another digest of a version that is not the committed one is nobody's affair.
    add_members(fleet, right, {**right, "m": {"1": "0" * 64}}, {**right, "m": {"1": "a" * 64, "2": "x"}}, {})
    assert gateway.unserved() == {}
    assert gateway.worker_faults() == {
        "b:1": "other files or another config.pbtxt of m 1 (digest 000000000000, committed aaaaaaaaaaaa)"
    }


def _current_version(fleet: Fleet) -> str:
    return fleet.model("m").current.version


def test_without_a_commitment_a_lost_or_draining_worker_takes_its_version_with_it() -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"2": ""}}, {"m": {"1": ""}})
    member = fleet.members["a:1"]
    assert _current_version(fleet) == "2"
    RequestMachine(fleet).checked(member.endpoint, False, SECOND)
    assert (member.endpoint.healthy, _current_version(fleet)) == (False, "1")
    member.endpoint.healthy = True
    fleet.health_changed(member)
    assert _current_version(fleet) == "2"
    for draining, version in ((True, "1"), (False, "2")):
        fleet.reported(member, LoadReport(0, 0, draining=draining), 2 * SECOND)
        assert _current_version(fleet) == version


def test_an_answer_that_says_draining_counts_as_a_probe_does() -> None:
    fleet = make_fleet()
    add_members(fleet, {"m": {"2": ""}}, {"m": {"1": ""}})
    machine = RequestMachine(fleet)
    request = Request(SECOND)
    request.served, request.demand = fleet.model("m"), Demand()
    machine.arrive(request, SECOND)
    (attempt,) = request.attempts
    assert attempt.replica.endpoint.address == "a:1"
    machine.answered(request, attempt, Outcome.ANSWERED, SECOND, LoadReport(0, 0, draining=True))
    assert _current_version(fleet) == "1"


def test_the_end_of_a_process_that_has_left_the_fleet_changes_nothing() -> None:
    fleet = make_fleet()
    add_members(fleet, M)
    gone = fleet.members["a:1"].endpoint
    fleet.set_members([Upstream("a", 1, 2)])
    successor = fleet.members["a:1"].endpoint
    successor.healthy = True
    fleet.endpoint_lost(gone)
    assert successor.healthy
