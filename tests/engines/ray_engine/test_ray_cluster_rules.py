"""Fleets that cannot run on several machines are rejected with the keys to change."""

from __future__ import annotations

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.ray.cluster_rules import cluster_problems

SEVERAL = ["10.0.0.1", "10.0.0.2", "10.0.0.2"]


def test_one_machine_takes_every_fleet() -> None:
    fleet = Fleet.model_validate({"name": "demo"})
    assert cluster_problems(fleet, []) == []
    assert cluster_problems(fleet, ["10.0.0.1", "10.0.0.1"]) == []


def test_a_file_store_and_loopback_addresses_serve_one_machine() -> None:
    found = cluster_problems(Fleet.model_validate({"name": "demo"}), SEVERAL)
    assert [(".".join(map(str, each.path)), each.expected, each.given) for each in found] == [
        (
            "store.url",
            "etcd:http://HOST:2379, since the Ray cluster has 2 machines and a file serves only one",
            "sqlite:state/fleet.db",
        ),
        (
            "control.listen",
            "0.0.0.0:8003, since Ray may start the process on any of 2 machines",
            "127.0.0.1:8003, which only the same machine reaches",
        ),
        (
            "gateways.gw.listen",
            "0.0.0.0:8000, since Ray may start the process on any of 2 machines",
            "127.0.0.1:8000, which only the same machine reaches",
        ),
    ]


def test_resources_that_have_a_key_of_their_own() -> None:
    fleet = Fleet.model_validate({"name": "demo", "pools": {"gpu": {"resources": {"GPU": 1, "memory": 1e9, "ssd": 1}}}})
    (found,) = cluster_problems(fleet, [])
    assert (found.path, found.expected) == (("pools", "gpu", "resources", "GPU"), "another resource: GPUs are gpus")


def test_an_address_of_one_machine_is_rejected_too() -> None:
    fleet = Fleet.model_validate(
        {
            "name": "demo",
            "store": {"url": "etcd:http://10.0.0.9:2379"},
            "control": {"listen": "0.0.0.0:8003"},
            "gateways": {"gw": {"listen": "10.0.0.1:8000"}, "six": {"listen": "[::1]:8100", "metrics_port": 0}},
        }
    )
    found = cluster_problems(fleet, SEVERAL)
    assert [each.given for each in found] == ["10.0.0.1:8000", "[::1]:8100, which only the same machine reaches"]
    assert found[1].expected.startswith("[::]:8100")


def test_a_fleet_for_several_machines() -> None:
    fleet = Fleet.model_validate(
        {
            "name": "demo",
            "store": {"url": "etcd:http://10.0.0.9:2379"},
            "control": {"listen": "0.0.0.0:8003"},
            "gateways": {"gw": {"listen": "0.0.0.0:8000"}},
        }
    )
    assert cluster_problems(fleet, SEVERAL) == []
