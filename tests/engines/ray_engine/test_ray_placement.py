"""Options of actors and placement groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isochrone.control.state.needs import Needs
from isochrone.engines.ray.placement import actor_options, group_of

ALONE = Needs(cpus=2, gpus=0.5, resources=(("ssd", 1.0),), labels=(("zone", "a"),), placement="spread")
GROUP = Needs(cpus=2, labels=(("zone", "a"),), placement="apart", group="cpu", shares=3, share=1)


def test_a_process_that_is_placed_alone() -> None:
    assert actor_options(ALONE) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "resources": {"ssd": 1.0},
        "label_selector": {"zone": "a"},
        "scheduling_strategy": "SPREAD",
    }
    assert actor_options(Needs(cpus=1)) == {"num_cpus": 1, "num_gpus": 0.0, "scheduling_strategy": "DEFAULT"}
    assert group_of("demo", ALONE) is None


def test_memory_is_an_option_of_its_own() -> None:
    options = actor_options(Needs(resources=(("memory", 2e9), ("ssd", 1.0))))
    assert (options["memory"], options["resources"]) == (2_000_000_000, {"ssd": 1.0})


def test_nodes_that_do_not_answer_are_avoided() -> None:
    assert actor_options(ALONE, {"n2", "n1"})["label_selector"] == {"zone": "a", "ray.io/node-id": "!in(n1,n2)"}


def test_a_process_of_a_group_takes_the_node_of_its_bundle() -> None:
    assert actor_options(GROUP, {"n1"}) == {"num_cpus": 2, "num_gpus": 0.0}
    group = group_of("demo", GROUP)
    assert group is not None
    assert (group.strategy, group.bundles, group.labels) == ("STRICT_SPREAD", ({"CPU": 2},) * 3, {"zone": "a"})
    assert group_of("demo", replace(GROUP, share=2)) == group


@pytest.mark.parametrize("change", [{"shares": 4}, {"cpus": 1.0}, {"labels": ()}, {"placement": "together"}])
def test_a_group_of_another_shape_is_another_group(change: dict[str, object]) -> None:
    changed, group = group_of("demo", replace(GROUP, **change)), group_of("demo", GROUP)  # type: ignore[arg-type]
    assert changed is not None
    assert group is not None
    assert changed.name != group.name
    assert changed.name.startswith("isochrone/demo/")


def test_processes_that_share_a_port_share_a_bundle() -> None:
    needs = Needs(cpus=1.5, placement="spread", group="gw", shares=2, processes_per_share=4)
    group = group_of("demo", needs)
    assert group is not None
    assert (group.strategy, group.bundles) == ("SPREAD", ({"CPU": 6.0},) * 2)


def test_a_bundle_is_never_empty() -> None:
    group = group_of("demo", Needs(placement="together", group="gw", shares=1))
    assert group is not None
    assert all(group.bundles[0].values())
