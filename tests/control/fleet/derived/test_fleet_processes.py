"""What runs: names, ports and command lines of a fleet's processes, and when they are equal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fleets import DIRECTORY, TEXT, changed, parse
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.locations import repositories_of, store_url
from isochrone.control.fleet.derived.outside_servers import outside_servers
from isochrone.control.fleet.derived.processes import NODE_ADDRESS, listens_on, processes, surge_of
from isochrone.control.fleet.reading.parsing import with_workers
from isochrone.control.state.needs import Needs
from isochrone.control.state.records import KUBERNETES

IDENTITY = ("--store", "sqlite:/srv/demo/state/fleet.db", "--fleet", "demo", "--lease-seconds", "5")


def test_every_process_has_a_name_and_a_role() -> None:
    found = processes(parse(TEXT), DIRECTORY)
    assert {name: spec.role for name, spec in found.items()} == {
        "control-1": "controller",
        "gw-1": "gateway",
        "gw-2": "gateway",
        "cpu-1": "worker",
        "cpu-2": "worker",
        "cpu-3": "worker",
        "gpu-1": "worker",
    }
    assert all(name == spec.name for name, spec in found.items())
    assert found["gpu-1"].pool == "gpu"


def test_command_lines() -> None:
    found = processes(parse(TEXT), DIRECTORY)
    assert found["control-1"].arguments == ("control", *IDENTITY, "--name", "control-1", "--listen", "127.0.0.1:8003")
    assert found["gw-2"].arguments == (
        *("gateway", "--listen", "127.0.0.1:8001", "--metrics-port", "9001"),
        *(*IDENTITY, "--name", "gw-2"),
    )
    assert found["gpu-1"].arguments == (
        *("serve", "/srv/demo/models", "--host", "127.0.0.1"),
        *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--model-control-mode", "explicit"),
        *(*IDENTITY, "--name", "gpu-1", "--pool", "gpu", "--tier", "core", "--device", "gpu"),
    )
    assert found["cpu-1"].arguments[-4:] == ("--device", "cpu", "--memory", str(2 << 30))


def test_workers_get_the_files_of_whom_they_trust() -> None:
    found = processes(parse("name: a\nsecurity: {signatures: {trust: [release.pub, /etc/ca.crt]}}"), DIRECTORY)
    flags = ("--require-signatures", "/srv/demo/release.pub", "--require-signatures", "/etc/ca.crt")
    assert found["cpu-1"].arguments[-4:] == flags
    assert not any("--require-signatures" in found[name].arguments for name in ("control-1", "gw"))


def test_workers_alone_get_the_sources_of_model_keys() -> None:
    keys = "[file:keys/a.key, env:KEY, 'command:/bin/kms --key a']"
    found = processes(parse(f"name: a\nsecurity: {{encryption: {{keys: {keys}, required: true}}}}"), DIRECTORY)
    flags = ("file:/srv/demo/keys/a.key", "env:KEY", "command:/bin/kms --key a")
    expected = [word for flag in flags for word in ("--model-key", flag)]
    assert found["cpu-1"].arguments[-7:] == (*expected, "--require-encryption")
    assert not any("--model-key" in found[name].arguments for name in ("control-1", "gw"))


def test_ports_count_up_and_free_ones_stay_free() -> None:
    fleet = parse(
        "name: a\ncontrol: {listen: '[::1]:9100', count: 2}\n"
        "gateways:\n  edge: {listen: 'h:7100', count: 2, metrics_port: -1, tier: edge, processes: 4}\n"
        "  free: {listen: 'h:0', metrics_port: 0}\n"
        "pools: {cpu: {workers: 2, first_port: 7000, region: eu, arguments: [--log-json]}}"
    )
    found = processes(fleet, DIRECTORY)
    assert found["control-2"].arguments[-1] == "[::1]:9101"
    assert found["edge-2.1"].arguments[1:5] == ("--listen", "h:7101", "--metrics-port", "-1")
    assert found["free"].arguments[1:5] == ("--listen", "h:0", "--metrics-port", "0")
    assert [name for name in found if name.startswith("edge-2")] == [f"edge-2.{number}" for number in (1, 2, 3, 4)]
    assert found["edge-2.4"].arguments[-3:] == ("--name", "edge-2.4", "--reuse-port")
    words = found["cpu-2"].arguments
    assert words[4:10] == ("--http-port", "7003", "--grpc-port", "7004", "--metrics-port", "7005")
    assert words[-3:] == ("--region", "eu", "--log-json")


def test_one_gateway_is_called_as_its_group() -> None:
    assert "gw" in processes(parse("name: a"), DIRECTORY)


@given(st.integers(1, 8), st.integers(1, 8))
def test_scaling_leaves_the_others_equal(before: int, after: int) -> None:
    fleet = parse(TEXT)
    old = processes(with_workers(fleet, "cpu", before), DIRECTORY)
    new = processes(with_workers(fleet, "cpu", after), DIRECTORY)
    assert all(old[name] == new[name] for name in old.keys() & new.keys())
    assert len(new) - len(old) == after - before


def test_what_reaches_processes_through_the_store_is_on_no_command_line() -> None:
    other = changed(
        ("version: 1", "version: 2"),
        ("deadline_ms: 100", "deadline_ms: 5"),
        ("ratio: 0.2", "ratio: 0.1"),
        ("strict", "fast"),
        ("max: 8", "max: 9"),
        ("pools: [cpu]", "pools: [gpu]"),
        ("distance_ms: 4", "distance_ms: 5"),
    )
    assert processes(parse(TEXT), DIRECTORY) == processes(parse(other), DIRECTORY)


def test_a_changed_setting_changes_only_its_pool() -> None:
    old, new = processes(parse(TEXT), DIRECTORY), processes(parse(changed(("2GiB", "3GiB"))), DIRECTORY)
    assert [name for name in old if old[name] != new[name]] == ["cpu-1", "cpu-2", "cpu-3"]
    assert replace(old["cpu-1"], arguments=()) == replace(new["cpu-1"], arguments=())


def test_stores() -> None:
    def at(url: str) -> str:
        return store_url(parse(f"name: a\nstore: {{url: '{url}'}}"), DIRECTORY)

    assert at("sqlite:../fleet.db") == "sqlite:/srv/fleet.db"
    assert at("sqlite:/var/fleet.db") == at("sqlite:///var/fleet.db") == "sqlite:/var/fleet.db"
    assert at("etcd:http://h1:2379,http://h2:2379") == "etcd:http://h1:2379,http://h2:2379"


def test_repositories_are_those_of_the_pool_and_of_its_models_sources() -> None:
    fleet = parse(
        "name: a\nrepository: [models, /shared]\npools: {cpu: {}, gpu: {repository: ../gpu-models}}\n"
        "models: {m: {source: ./trained/m, pools: [gpu]}, n: {source: /shared/n}}"
    )
    assert repositories_of(fleet, "cpu", DIRECTORY) == (Path("/srv/demo/models"), Path("/shared"))
    assert repositories_of(fleet, "gpu", DIRECTORY) == (
        Path("/srv/gpu-models"),
        Path("/srv/demo/trained"),
        Path("/shared"),
    )


def test_outside_servers_are_named_by_their_address() -> None:
    fleet = parse("name: a\npools: {t: {kind: triton, addresses: ['10.0.0.7:8000,grpc=8001,metrics=8002', 'h:1']}}")
    assert not [spec for spec in processes(fleet, DIRECTORY).values() if spec.role == "worker"]
    found = outside_servers(fleet)
    assert list(found) == ["t-10.0.0.7-8000", "t-h-1"]
    server = found["t-10.0.0.7-8000"]
    assert (server.pool, server.kind, server.upstream.grpc_port, server.upstream.metrics_port) == (
        "t",
        "triton",
        8001,
        8002,
    )


def test_a_surge_worker_has_the_same_command_line_on_free_ports() -> None:
    fleet = parse("name: a\npools: {cpu: {first_port: 7000, memory: 1GiB}}")
    worker = processes(fleet, Path("/srv"))["cpu-1"]
    surge = surge_of(worker)
    assert (surge.name, surge.role, surge.pool) == ("cpu-surge", "worker", "cpu")
    assert "7000" in worker.arguments
    differing = [(a, b) for a, b in zip(worker.arguments, surge.arguments, strict=True) if a != b]
    assert differing == [("7000", "0"), ("7001", "0"), ("7002", "0"), ("cpu-1", "cpu-surge")]


def test_ports_are_read_in_both_spellings_and_nothing_else_is_taken_for_one() -> None:
    assert listens_on(("serve", "--http-port", "7000", "--grpc-port=7001", "--metrics-port", "0")) == (7000, 7001)
    odd = parse("name: a\npools: {cpu: {first_port: 7000, region: --http-port, arguments: [--log-json]}}")
    assert listens_on(processes(odd, Path("/"))["cpu-1"].arguments) == (7000, 7001, 7002)


# Machines that an engine chooses.


def test_on_one_machine_nothing_is_needed_of_it() -> None:
    assert all(spec.needs is None for spec in processes(parse(TEXT), DIRECTORY).values())


def test_on_chosen_machines_workers_listen_where_other_machines_reach_them() -> None:
    fleet = parse("name: a\ngateways: {gw: {listen: '0.0.0.0:8000'}, own: {listen: '127.0.0.1:8100', metrics_port: 0}}")
    found = processes(fleet, DIRECTORY, "ray")
    assert ("--host", NODE_ADDRESS) in pairwise(found["cpu-1"].arguments)
    assert ("--advertise", NODE_ADDRESS) in pairwise(found["gw"].arguments)
    assert "--advertise" not in found["own"].arguments


def test_needs_of_a_process() -> None:
    fleet = parse(
        "name: a\ncontrol: {cpus: 0.5}\n"
        "gateways: {gw: {count: 2, processes: 3, placement: apart, node_labels: {site: edge}}}\n"
        "pools:\n  gpu: {workers: 2, cpus: 2, gpus: 0.5, resources: {ssd: 1}, node_labels: {zone: b, kind: h200}}\n"
        "  near: {workers: 2, placement: together}\n"
    )
    found = {name: spec.needs for name, spec in processes(fleet, DIRECTORY, "ray").items()}
    assert found["control-1"] == Needs(0.5, placement="spread")
    labels = (("kind", "h200"), ("zone", "b"))
    assert found["gpu-1"] == found["gpu-2"] == Needs(2.0, 0.5, (("ssd", 1.0),), labels, "spread")
    # Processes that share a port share a machine.
    edge = Needs(1.0, labels=(("site", "edge"),), placement="apart", group="gw", shares=2, processes_per_share=3)
    assert [found["gw-1.1"], found["gw-1.3"], found["gw-2.2"]] == [edge, edge, replace(edge, share=1)]
    near = Needs(1.0, placement="together", group="near", shares=2)
    assert [found["near-1"], found["near-2"]] == [near, replace(near, share=1)]


def test_scaling_changes_only_groups_that_are_placed_together() -> None:
    text = "name: a\npools: {cpu: {workers: 2}, near: {workers: 2, placement: together}}"
    before, after = parse(text), with_workers(with_workers(parse(text), "cpu", 3), "near", 3)
    old, new = processes(before, DIRECTORY, "ray"), processes(after, DIRECTORY, "ray")
    assert [name for name in old if old[name] != new[name]] == ["near-1", "near-2"]


def test_a_stand_in_belongs_to_no_group() -> None:
    fleet = parse("name: a\npools: {near: {placement: together, cpus: 3}}")
    assert surge_of(processes(fleet, DIRECTORY, "ray")["near-1"]).needs == Needs(3.0, placement="together")


def test_traces_and_the_access_log_reach_every_gateway_and_worker() -> None:
    plain = processes(parse(TEXT), DIRECTORY)
    section = (
        "observability:\n  tracing: {otlp: 'http://c:4317', protocol: grpc, sample: 0.02}\n"
        "  access_log: {share: 0.5, directory: /var/log}\n"
    )
    observed = processes(parse(TEXT + section), DIRECTORY)
    common = ("mode=opentelemetry", "rate=50", "opentelemetry,protocol=grpc", "opentelemetry,url=http://c:4317")
    for name, spec in observed.items():
        added = set(spec.arguments) - set(plain[name].arguments)
        expected = {
            f"--trace-config={each}" for each in (*common, f"opentelemetry,resource=service.instance.id={name}")
        }
        expected |= {"--access-log=0.5", f"--access-log-file=/var/log/{name}.access.log"}
        expected |= {"--trace-config=level=TIMESTAMPS"} if spec.role == "worker" else set()
        assert added == (set() if spec.role == "controller" else expected)


def test_the_audit_log_reaches_every_process_and_requests_the_gateways_alone() -> None:
    plain = processes(parse(TEXT), DIRECTORY)
    section = (
        "security:\n  audit: {directory: /var/audit, requests: true, key: keys/audit, keep_days: 90,"
        " redact: {agent: hash, address: truncate}}\n"
    )
    for name, spec in processes(parse(TEXT + section), DIRECTORY).items():
        words = [word for word in spec.arguments if word not in plain[name].arguments]
        key = ("--audit", "/var/audit", "--audit-key", "/srv/demo/keys/audit", "--audit-keep", "90")
        requests = ("--audit-requests",) if spec.role == "gateway" else ()
        assert tuple(words) == (*key, "--audit-redact", "address=truncate,agent=hash", *requests), name


def test_a_cluster_has_no_audit_log() -> None:
    fleet = parse(TEXT + "security:\n  audit: {directory: /var/audit}\n")
    found = processes_on(KUBERNETES, fleet, DIRECTORY)
    assert not any("--audit" in spec.arguments for spec in found.values())


def test_the_sandbox_is_on_the_command_line_of_every_worker() -> None:
    text = TEXT + "security: {sandbox: {best_effort: true, memory: 2GiB, allow: [network=web]}}\n"
    found = processes(parse(text), DIRECTORY)
    words = ("--sandbox", "--sandbox-best-effort", "--sandbox-memory", str(2 << 30), "--sandbox-allow", "network=web")
    for spec in found.values():
        assert (" ".join(words) in " ".join(spec.arguments)) == (spec.role == "worker")
    trusting = parse("name: a\nsecurity: {sandbox: true}\nmodels: {old: {version: 1, trust: true}, m: {version: 1}}")
    (worker,) = (spec for spec in processes(trusting, DIRECTORY).values() if spec.role == "worker")
    assert " ".join(worker.arguments).endswith("--sandbox --trust-model old")
    assert "--sandbox" not in processes(parse("name: a\nsecurity: {sandbox: false}"), DIRECTORY)["cpu-1"].arguments


def test_access_rules_reach_every_process_where_the_fleet_has_a_key() -> None:
    guarded = processes(parse(TEXT + "security: {access: access.yaml, key: fleet.key}\n"), DIRECTORY)
    for process in guarded.values():
        words = process.arguments
        expected = f"{DIRECTORY}/access.yaml" if process.role == "controller" else "@fleet"
        assert words[words.index("--access") + 1] == expected
        assert "--fleet-key" in words
        # Workers that check callers do not trust the code of models either.
        assert ("--sandbox" in words) is (process.role == "worker")
    open_ones = processes(parse(TEXT + "security: {access: access.yaml}\n"), DIRECTORY)
    for process in open_ones.values():
        assert ("--access" in process.arguments) is (process.role != "worker")
        assert "@fleet" not in process.arguments
        assert not {"--sandbox", "--no-sandbox"} & set(process.arguments)
    off = processes(parse(TEXT + "security: {access: access.yaml, key: fleet.key, sandbox: false}\n"), DIRECTORY)
    assert all(("--no-sandbox" in each.arguments) is (each.role == "worker") for each in off.values())
