"""Why a process has no place on any node of a Ray cluster."""

from __future__ import annotations

import pytest

from isochrone.control.state.needs import Needs
from isochrone.engines.ray.nodes import Node, read_nodes, resources_of, waiting_reason

PLAIN = Node("a", "10.0.0.1", {"CPU": 4.0})
GPU = Node("b", "10.0.0.2", {"CPU": 8.0, "GPU": 2.0}, {"accelerator": "h200"})
LONG, SHORT = 60.0, 4.0


def test_rows_of_dead_nodes_are_left_out() -> None:
    rows = [
        {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}, "Labels": {}},
        {"NodeID": "c", "Alive": False, "NodeManagerAddress": "10.0.0.3", "Resources": {}},
    ]
    assert read_nodes(rows) == [PLAIN]


def test_only_what_is_needed_is_asked_for() -> None:
    assert resources_of(Needs(cpus=0.5, resources=(("ssd", 1.0),)), 2) == {"CPU": 1.0, "ssd": 2.0}


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Needs(gpus=1, labels=(("accelerator", "b200"),)), "no Ray node has gpus: 1 and label accelerator=b200"),
        (Needs(cpus=16), "no Ray node has cpus: 16"),
        (Needs(cpus=1, gpus=4), "no Ray node has cpus: 1 and gpus: 4"),
        (Needs(resources=(("fpga", 1.0),)), "no Ray node has fpga: 1"),
        (
            Needs(cpus=1, placement="apart", group="cpu", shares=3),
            "3 Ray nodes must have cpus: 1 (placement: apart), 2 have",
        ),
        (
            Needs(cpus=4, placement="together", group="cpu", shares=3),
            "no Ray node has cpus: 12 for all of them (placement: together)",
        ),
    ],
)
def test_needs_that_no_node_can_meet_are_named_at_once(needs: Needs, reason: str) -> None:
    assert waiting_reason(needs, [PLAIN, GPU], SHORT) == reason


def test_a_process_that_fits_gets_time_to_start() -> None:
    assert waiting_reason(Needs(cpus=1), [PLAIN, GPU], SHORT) == ""
    assert waiting_reason(Needs(cpus=1), [PLAIN, GPU], LONG) == (
        "the 2 Ray nodes that have cpus: 1 have no room for it now"
    )
    assert waiting_reason(Needs(gpus=1), [PLAIN, GPU], LONG) == "the Ray node that has gpus: 1 has no room for it now"


def test_a_cluster_without_nodes() -> None:
    assert waiting_reason(Needs(), [], SHORT) == "Ray has no node"


def test_processes_of_one_share_need_one_node() -> None:
    needs = Needs(cpus=3, placement="spread", group="gw", shares=1, processes_per_share=3)
    assert waiting_reason(needs, [PLAIN, GPU], SHORT) == "no Ray node has cpus: 9"
