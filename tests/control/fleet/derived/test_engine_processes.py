"""The processes of a fleet in pods: one pod each, the usual ports, and what makes another pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.derived.processes import ProcessSpec, surge_of
from isochrone.control.fleet.reading.parsing import examine
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES, LOCAL
from isochrone.engines.supervision.ports import conflicts


def fleet_of(text: str = "") -> Fleet:
    examined = examine(f"name: plant\nstore: {{url: 'etcd:http://etcd:2379'}}\n{text}", "fleet.yaml")
    assert examined.fleet is not None, examined.problems
    return examined.fleet


def in_pods(text: str = "", directory: str = "/home/me") -> dict[str, ProcessSpec]:
    return processes_on(KUBERNETES, fleet_of(text), Path(directory))


def value(spec: ProcessSpec, flag: str) -> str:
    return spec.arguments[spec.arguments.index(flag) + 1]


def test_every_process_has_the_usual_ports_and_none_conflicts_with_another() -> None:
    specs = in_pods("control: {count: 2}\ngateways: {gw: {count: 2}}\npools: {cpu: {workers: 3}}\n")
    assert specs.keys() == {"control-1", "control-2", "gw-1", "gw-2", "cpu-1", "cpu-2", "cpu-3"}
    assert {value(specs[f"cpu-{number}"], "--http-port") for number in (1, 2, 3)} == {"8000"}
    assert {value(specs[name], "--listen") for name in ("gw-1", "gw-2")} == {"0.0.0.0:8000"}
    assert [value(specs[name], "--name") for name in specs] == list(specs)
    assert not any(conflicts(one, other) for one in specs.values() for other in specs.values())


def test_processes_that_share_a_port_on_a_machine_have_a_pod_each() -> None:
    text = "gateways: {gw: {count: 2, processes: 2}}\n"
    gateways = {name: spec for name, spec in in_pods(text).items() if spec.role == "gateway"}
    assert gateways.keys() == {"gw-1.1", "gw-1.2", "gw-2.1", "gw-2.2"}, "the names that they register"
    assert all("--reuse-port" not in spec.arguments for spec in gateways.values())
    local = processes_on(LOCAL, fleet_of(text), Path("/home/me"))
    assert gateways.keys() <= local.keys()


def test_paths_refer_to_the_directory_of_pods_wherever_the_file_was_applied() -> None:
    specs = in_pods("repository: models\n")
    assert specs == in_pods("repository: models\n", "/elsewhere")
    assert "/srv/isochrone/models" in specs["cpu-1"].arguments


@pytest.mark.parametrize(
    ("change", "others"),
    [
        ("kubernetes: {image: 'another:1'}", {"control-1", "gw", "cpu-1"}),
        ("kubernetes: {env: {AWS_REGION: eu-west-1}}", {"control-1", "gw", "cpu-1"}),
        ("kubernetes: {pools: {cpu: {tolerations: [gpu]}}}", {"cpu-1"}),
        ("pools: {cpu: {cpus: 3}}", {"cpu-1"}),
        ("kubernetes: {service_type: LoadBalancer, quota: false, monitoring_namespace: watch}", set()),
        ("kubernetes: {pools: {cpu: {ready_seconds: 60}}}", set()),
    ],
)
def test_what_pods_are_made_of_makes_others_and_what_other_objects_are_made_of_does_not(
    change: str, others: set[str]
) -> None:
    before, after = in_pods(), in_pods(f"{change}\n")
    assert {name for name in before if before[name] != after[name]} == others


def test_a_second_worker_beside_the_only_one_has_the_ports_of_pods() -> None:
    surge = surge_of(in_pods()["cpu-1"])
    assert surge.name == "cpu-surge"
    assert value(surge, "--http-port") == "8000"
    on_a_machine = surge_of(processes_on(LOCAL, fleet_of(), Path("/home/me"))["cpu-1"])
    assert value(on_a_machine, "--http-port") == "0"
