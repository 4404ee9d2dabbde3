"""The plan of an apply: one step per change, and none for what does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleets import TEXT, changed, parse
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.planning.plan import plan, rollout_groups
from isochrone.control.fleet.planning.steps import Step, VersionChange, is_refused, takes_away
from isochrone.control.fleet.reading.parsing import with_workers
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import KUBERNETES, Assignment, KeptPool


def steps(*changes: tuple[str, str]) -> list[str]:
    return [str(step) for step in plan(parse(TEXT), parse(changed(*changes)))]


def test_nothing_changes_nothing() -> None:
    assert plan(parse(TEXT), parse(TEXT)) == []
    assert plan(parse(TEXT), parse(TEXT + "# a comment\n")) == []


def test_pods_that_would_not_start_are_refused() -> None:
    before = parse(TEXT + "kubernetes: {require_secure: false}\n")
    (step,) = plan(before, parse(TEXT), engine=KUBERNETES)
    assert str(step) == (
        "refuse fleet kubernetes.require_secure: pods start with --require-secure: add security.tls (with "
        "kubernetes.tls_secret) and security.access and security.key (with kubernetes.security_secret), or set it to "
        "false"
    )
    assert not is_refused(plan(parse(TEXT), before, engine=KUBERNETES))
    assert not is_refused(plan(before, parse(TEXT)))


def test_the_first_time() -> None:
    found = plan(None, parse(TEXT), resolved={"preprocess": "2", "detector": "1", "pipeline": "1"})
    assert [str(step) for step in found] == [
        "start controller control: control-1",
        "start gateway gw: gw-1, gw-2",
        "start pool cpu: cpu-1, cpu-2, cpu-3",
        "start pool gpu: gpu-1",
        "rollout model preprocess, detector, pipeline: preprocess 2 (new), detector 1 (new), pipeline 1 (new); strict",
    ]
    assert found[1].processes == ("gw-1", "gw-2")
    assert found[-1].versions[0] == VersionChange("preprocess", "", "2")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("workers: 3", "workers: 5", ["start pool cpu: cpu-4, cpu-5"]),
        ("workers: 3", "workers: 2", ["stop pool cpu: cpu-3"]),
        ("count: 2}", "count: 3}", ["start gateway gw: gw-3"]),
        ("8003\", count: 1", "8003\", count: 2", ["start controller control: control-2"]),
        ("8003", "8004", ["restart controller control: control-1 (listen: 127.0.0.1:8003 → 127.0.0.1:8004)"]),
        ("2GiB", "3GiB", ["restart pool cpu: cpu-1, cpu-2, cpu-3 (memory: 2GiB → 3GiB)"]),
        ("max: 8", "max: 9", ["change pool cpu: max: 8 → 9"]),
        ("distance_ms: 4", "distance_ms: 5", ["change pool gpu: distance_ms: 4 → 5"]),
        ("./models", "./others", [
            "restart pool cpu: cpu-1, cpu-2, cpu-3 (repository)", "restart pool gpu: gpu-1 (repository)",
        ]),
        ("pools: [cpu]", "pools: [cpu, gpu]", ["change model detector: serve it in cpu, gpu (was cpu)"]),
        ("concurrency: 8", "concurrency: 9", [
            "change model detector: traffic: retries: ratio: 0.2, quota: concurrency: 8"
            " → retries: ratio: 0.2, quota: concurrency: 9"
        ]),
        ("strict", "fast", ["change model pipeline: rollout.cutover: strict → fast"]),
        (", canary: {steps: [5%, 0.25]}", "", ["change model pipeline: rollout.canary: steps: 0.05, 0.25 → none"]),
        ("200MiB", "1GiB", ["change model detector: memory: 200MiB → 1GiB"]),
        ("  preprocess:\n", "", ["retire model preprocess: no longer served"]),
        ("fleet.db\"", "fleet.db\", lease_seconds: 9", [
            "restart controller control: control-1 (store.lease_seconds: 5 → 9)",
            "restart gateway gw: gw-1, gw-2 (store.lease_seconds: 5 → 9)",
            "restart pool cpu: cpu-1, cpu-2, cpu-3 (store.lease_seconds: 5 → 9)",
            "restart pool gpu: gpu-1 (store.lease_seconds: 5 → 9)",
            "interrupt gateway gw: requests to 127.0.0.1:8000, 127.0.0.1:8001 fail while its process is replaced",
        ]),
        ("    version: 1\n    pools", "    source: /else/detector\n    version: 1\n    pools", [
            "restart pool cpu: cpu-1, cpu-2, cpu-3 (model sources)",
        ]),
        ("    version: 1\n    with", "    version: 2\n    with", [
            "rollout model pipeline: pipeline 1 → 2; strict, canary"
        ]),
        ("  preprocess:\n", "  preprocess:\n  tracker: {version: 4}\n", [
            "rollout model tracker: tracker 4 (new); fast"
        ]),
    ],
)  # fmt: skip
def test_one_change(before: str, after: str, expected: list[str]) -> None:
    assert steps((before, after)) == expected


def test_changed_defaults_are_told_of_the_models_that_have_them() -> None:
    assert steps(("deadline_ms: 100", "deadline_ms: 50")) == [
        "change model preprocess: slo.deadline_ms: 100 → 50",
        "change model detector: slo.deadline_ms: 100 → 50",
        "change model pipeline: slo.deadline_ms: 100 → 50",
        "change fleet defaults: slo.deadline_ms: 100 → 50",
    ]


def test_models_that_are_tied_change_as_one() -> None:
    found = plan(parse(TEXT), parse(TEXT.replace("version: 1", "version: 2")))
    assert [str(step) for step in found] == [
        "rollout model detector, pipeline: detector 1 → 2, pipeline 1 → 2; strict, canary"
    ]
    assert found[0].versions == (VersionChange("detector", "1", "2"), VersionChange("pipeline", "1", "2"))


def test_what_is_served_counts_where_it_is_known() -> None:
    fleet = parse(TEXT)
    served = {"preprocess": "3", "detector": "1", "pipeline": "1"}
    assert plan(fleet, fleet, served=served, resolved={"preprocess": "3"}) == []
    (step,) = plan(fleet, fleet, served=served, resolved={"preprocess": "4"})
    assert str(step) == "rollout model preprocess: preprocess 3 → 4; fast"


def test_a_fleet_keeps_its_name_and_its_store() -> None:
    found = plan(
        parse(TEXT), parse(changed(("name: demo", "name: other"), ("fleet.db", "b.db"), ("workers: 3", "workers: 4")))
    )
    assert is_refused(found)
    assert [str(step) for step in found] == [
        "refuse fleet name: cannot change from 'demo' to 'other' while the fleet runs; stop it and start the new one",
        "refuse fleet store.url: cannot change from 'sqlite:state/fleet.db' to 'sqlite:state/b.db' while the fleet"
        " runs; stop it and start the new one",
    ]
    assert not is_refused(plan(None, parse(TEXT)))


def test_a_pool_that_goes_or_comes() -> None:
    gone = changed(("  gpu: {workers: 1, tier: core, device: gpu, distance_ms: 4}\n", ""))
    (retired,) = [step for step in plan(parse(TEXT), parse(gone)) if step.kind == "pool"]
    assert str(retired) == "retire pool gpu: gpu-1 stop, once pipeline, preprocess are no longer served by it"
    assert retired.processes == ("gpu-1",)
    assert next(str(step) for step in plan(parse(gone), parse(TEXT))) == "start pool gpu: gpu-1"


def test_one_gateway_more_renames_the_first() -> None:
    found = plan(parse("name: a"), parse("name: a\ngateways: {gw: {count: 2}}"))
    assert [str(step) for step in found] == [
        "start gateway gw: gw-1, gw-2",
        "stop gateway gw: gw",
        "interrupt gateway gw: requests to 127.0.0.1:8000 fail while its process is replaced",
    ]
    assert takes_away(found) == ("gateway gw",)


def test_outside_servers() -> None:
    one, two = (parse(f"name: a\npools: {{t: {{addresses: ['{host}:1']}}}}") for host in ("g", "h"))
    assert [str(step) for step in plan(one, two)] == [
        "change pool t: use the server at h:1",
        "change pool t: no longer use the server at g:1",
    ]


def test_a_moved_file_moves_its_paths() -> None:
    fleet = parse(changed(("sqlite:state", "sqlite:/srv/state")))
    found = plan(fleet, fleet, directory=Path("/new"), directory_before=Path("/old"))
    assert {step.action for step in found} == {"restart"}
    assert {name for step in found for name in step.processes} == {"cpu-1", "cpu-2", "cpu-3", "gpu-1"}
    # A store beside the file would be another one there, with nothing in it.
    relative = parse(TEXT)
    (refused,) = plan(relative, relative, directory=Path("/new"), directory_before=Path("/old"))
    assert is_refused([refused])
    assert "from 'sqlite:/old/state/fleet.db' to 'sqlite:/new/state/fleet.db'" in refused.detail


@given(st.integers(1, 8), st.integers(1, 8))
def test_there_and_back(one: int, other: int) -> None:
    fleet = parse(TEXT)
    a, b = with_workers(fleet, "cpu", one), with_workers(fleet, "cpu", other)
    there, back = plan(a, b), plan(b, a)
    opposite = {"start": "stop", "stop": "start"}
    assert [Step(opposite[step.action], step.kind, step.name, step.detail, step.processes) for step in there] == back
    assert bool(there) == (one != other)


def test_groups() -> None:
    fleet = parse("name: a\nmodels: {a: {with: [b]}, b: {}, c: {stages: [d]}, d: {}, e: {}}")
    assert rollout_groups(fleet, ["a", "b", "c", "d", "e"]) == [("a", "b"), ("c", "d"), ("e",)]
    assert rollout_groups(fleet, ["b", "e"]) == [("b",), ("e",)]
    assert rollout_groups(fleet, ["b", "e"], {"e": ["b"]}) == [("b", "e")]
    assert rollout_groups(fleet, ["e", "d", "b"], {"e": ["b", "d"]}) == [("e", "d", "b")]


def test_processes_of_one_gateway_are_told_as_of_their_group() -> None:
    text = (
        "name: a\ngateways:\n  my-edge: {listen: '127.0.0.1:7200', metrics_port: 9500, processes: 2}\n"
        "  gw: {listen: '127.0.0.1:%d', processes: 2}\n"
    )
    step, retired = plan(parse(text % 7000), parse(text % 7001))
    assert str(retired) == "retire gateway gw: no gateway answers at 127.0.0.1:7000 any more"
    assert (step.action, step.kind, step.name, step.processes) == ("restart", "gateway", "gw", ("gw.1", "gw.2"))
    assert "listen" in step.detail


# What is taken away.


def test_a_model_that_is_served_and_that_the_new_repository_does_not_hold_is_retired() -> None:
    fleet = parse("name: a\npools: {cpu: {workers: 2}}")
    committed = {"kept": Assignment("1", pools=("cpu",)), "lost": Assignment("3", pools=("cpu",))}
    served = {"kept": "1", "lost": "3"}
    found = plan(fleet, fleet, served=served, resolved={"kept": "1"}, committed=committed)
    assert [str(step) for step in found] == ["retire model lost: no longer served"]
    assert takes_away(found) == ("model lost",)


def test_a_pool_without_workers_is_retired_and_a_smaller_one_is_not() -> None:
    three = parse("name: a\npools: {cpu: {workers: 3}}\nmodels: {m: {version: 1}}")
    assert takes_away(plan(three, with_workers(three, "cpu", 1))) == ()
    none = plan(three, with_workers(three, "cpu", 0))
    assert [str(step) for step in none] == [
        "retire pool cpu: cpu-1, cpu-2, cpu-3 stop, once m is no longer served by it"
    ]


def test_a_renamed_pool_of_servers_is_retired_with_its_addresses() -> None:
    one, two = (parse(f"name: a\npools: {{{pool}: {{addresses: ['g:1', 'h:1']}}}}") for pool in ("old", "new"))
    committed = {"m": Assignment("1", pools=("old",))}
    found = plan(one, two, resolved={"m": "1"}, served={"m": "1"}, committed=committed)
    assert "retire pool old: no longer use g:1, h:1, once m is no longer served by it" in map(str, found)
    assert not any("no longer use the server" in step.detail for step in found)


def test_a_renamed_pool_may_not_take_the_ports_of_the_one_that_still_serves() -> None:
    one, two = (parse(f"name: a\npools: {{{pool}: {{first_port: 7000}}}}") for pool in ("old", "new"))
    committed = {"m": Assignment("1", pools=("old",))}
    (step,) = plan(one, two, resolved={"m": "1"}, served={"m": "1"}, committed=committed)
    assert is_refused([step])
    assert step.name == "pools.new.first_port"
    assert "port 7000 is held by pool old until what it serves is served elsewhere" in step.detail
    assert not is_refused(plan(one, two, committed={}))


def _kept(first_port: int) -> dict[str, KeptPool]:
    """Pool ``old`` of an earlier file, which an aborted rollout left serving."""
    fleet = parse(f"name: a\npools: {{old: {{workers: 2, first_port: {first_port}}}}}")
    specs = processes(fleet, Path("/")).values()
    return {"old": KeptPool({spec.name: spec.arguments for spec in specs if spec.pool == "old"})}


def test_ports_of_a_kept_pool_are_not_to_be_had() -> None:
    one = parse("name: a\npools: {new: }")
    committed = {"m": Assignment("1", pools=("old",))}
    for port in (7000, 7005):
        two = parse(f"name: a\npools: {{new: {{first_port: {port}}}}}")
        (step,) = plan(one, two, resolved={"m": "1"}, served={"m": "1"}, committed=committed, kept=_kept(7000))
        assert is_refused([step])
        assert step.name == "pools.new.first_port"
        assert f"port {port} is held by pool old until what it serves is served elsewhere" in step.detail
    for listen in ("control: {listen: '127.0.0.1:7001'}", "gateways: {gw: {listen: '127.0.0.1:7002'}}"):
        (step,) = plan(one, parse(f"name: a\n{listen}\npools: {{new: }}"), committed=committed, kept=_kept(7000))
        assert is_refused([step])
    # Ports that the system chooses, other ones, and the pool itself, when it comes back.
    assert not is_refused(plan(one, two, committed=committed, kept=_kept(0)))
    assert not is_refused(plan(one, two, committed=committed, kept=_kept(7008)))
    back = parse("name: a\npools: {old: {workers: 2, first_port: 7000}}")
    assert not is_refused(plan(one, back, committed=committed, kept=_kept(7000)))


def test_the_retirement_of_a_kept_pool_is_in_the_plan() -> None:
    fleet = parse("name: a\npools: {new: }\nmodels: {m: {version: 1}}")
    committed = {"m": Assignment("1", pools=("old",))}
    found = plan(fleet, fleet, served={"m": "1"}, committed=committed, kept=_kept(7000))
    assert [str(step) for step in found] == [
        "retire pool old: old-1, old-2 stop, once m is no longer served by it",
        "change model m: serve it in new (was old)",
    ]
    assert takes_away(found) == ("pool old",)
    servers = KeptPool(servers=(WorkerRecord("old-g-1", "g", 1, 2, pool="old"),))
    found = plan(fleet, fleet, served={"m": "1"}, committed=committed, kept={"old": servers})
    assert str(found[0]) == "retire pool old: no longer use g:1, once m is no longer served by it"
    back = parse("name: a\npools: {old: {workers: 2, first_port: 7000}}\nmodels: {m: {version: 1}}")
    found = plan(fleet, back, served={"m": "1"}, committed=committed, kept=_kept(7000))
    assert "pool old" not in takes_away(found)


def test_a_model_is_moved_when_it_is_not_served_where_the_file_says_whatever_the_file_before_said() -> None:
    fleet = parse("name: a\npools: {new: }\nmodels: {m: {version: 1}}")
    found = plan(fleet, fleet, served={"m": "1"}, committed={"m": Assignment("1", pools=("old",))})
    assert [str(step) for step in found] == ["change model m: serve it in new (was old)"]


def test_settings_without_effect_are_told() -> None:
    tls = "tls: {cert: a.pem, key: a.key, ca: a.ca}"
    security = f"security: {{{tls}, signatures: {{trust: [a.pub]}}, encryption: {{keys: [file:k]}}}}"
    fleet = parse(f"name: a\n{security}\nobservability: {{log: {{json: true}}}}")
    assert [str(step) for step in plan(fleet, fleet)] == [
        "ignore fleet observability.log: has no effect in this release",
    ]
    audited = parse("name: a\nsecurity: {audit: {directory: /var/audit}}")
    assert plan(audited, audited) == []


@pytest.mark.parametrize(
    ("before", "after", "interrupts"),
    [
        ("", "mode: permissive", False),
        ("mode: permissive", "mode: required", False),
        ("mode: required", "mode: permissive", False),
        ("mode: permissive", "", False),
        ("mode: required", "mode: required", False),
        ("", "mode: required", True),
        ("mode: required", "", True),
    ],
)
def test_tls_comes_and_goes_by_a_permissive_step(before: str, after: str, interrupts: bool) -> None:
    def fleet_with(mode: str) -> Any:
        files = "cert: a.pem, key: a.key, ca: a.ca"
        return parse("name: a\npools: {cpu: }\n" + (f"security: {{tls: {{{files}, {mode}}}}}\n" if mode else ""))

    found = [str(step) for step in plan(fleet_with(before), fleet_with(after))]
    said = "interrupt fleet security.tls: requests fail until every process has restarted"
    assert any(step.startswith(said) for step in found) == interrupts


def test_trust_needs_a_sandbox() -> None:
    text = "name: a\nsecurity: {sandbox: WORD}\nmodels: {m: {version: 1, trust: true}}"
    fleet = parse(text.replace("WORD", "false"))
    assert [str(step) for step in plan(fleet, fleet)] == [
        "ignore model m: trust has no effect without security.sandbox: every model is trusted"
    ]
    confined = parse(text.replace("WORD", "true"))
    assert [str(step) for step in plan(confined, confined)] == []


def test_access_needs_a_key_for_workers() -> None:
    open_one = parse("name: a\nsecurity: {access: access.yaml}")
    assert [str(step) for step in plan(open_one, open_one)] == [
        "ignore fleet security.access: no effect on workers and metrics ports without security.key: they answer every"
        " caller"
    ]
    guarded = parse("name: a\nsecurity: {access: access.yaml, key: fleet.key}\nmodels: {m: {version: 1, trust: true}}")
    assert plan(guarded, guarded) == []


def test_settings_of_placement_need_a_planned_pool() -> None:
    text = "name: a\npools: {cpu: {replicas: WORD}}\nmodels: {m: {version: 1, min_replicas: 2, apart: true}}"
    fleet = parse(text.replace("WORD", "all"))
    assert [str(step) for step in plan(fleet, fleet)] == [
        "ignore model m: min_replicas has no effect: none of its pools has replicas: planned",
        "ignore model m: apart has no effect: none of its pools has replicas: planned",
    ]
    planned = parse(text.replace("WORD", "planned"))
    assert [str(step) for step in plan(planned, planned)] == []
    assert [str(step) for step in plan(parse(text.replace("WORD", "all")), planned)] == [
        "change pool cpu: replicas: all → planned"
    ], "no worker restarts"


def test_processes_of_a_kept_pool_that_comes_back_run_already() -> None:
    fleet = parse("name: a\npools: {new: }")
    committed = {"m": Assignment("1", pools=("old",))}

    def shown(pool: str) -> list[str]:
        back = parse(f"name: a\npools: {{new: , old: {pool}}}")
        return [str(step) for step in plan(fleet, back, committed=committed, kept=_kept(7000)) if step.name == "old"]

    assert shown("{workers: 2, first_port: 7000}") == ["change pool old: keep old-1, old-2, as they run"]
    assert shown("{workers: 3, first_port: 7000}") == [
        "change pool old: keep old-1, old-2, as they run",
        "start pool old: old-3",
    ]
    assert shown("{workers: 1, first_port: 7000}") == [
        "change pool old: keep old-1, as they run",
        "stop pool old: old-2",
    ]
    assert shown("{workers: 2, first_port: 7000, region: eu}") == [
        "restart pool old: old-1, old-2 (its settings differ from those it runs with)"
    ]
    servers = KeptPool(servers=(WorkerRecord("old-g-1", "g", 1, 2, pool="old"),))
    back = parse("name: a\npools: {new: , old: {addresses: ['g:1', 'h:1']}}")
    found = plan(fleet, back, committed=committed, kept={"old": servers})
    assert [step.detail for step in found if step.name == "old"] == ["keep the server at g:1", "use the server at h:1"]
