"""What an actor and its supervisor exchange, and the command line that an actor runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.control.fleet.derived.processes import NODE_ADDRESS, ProcessSpec, processes
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.ray.actor import placed
from isochrone.engines.ray.reports import (
    ExitReport,
    Report,
    decode_report,
    decode_spec,
    encode_report,
    encode_spec,
    read_spec,
)


def specs() -> dict[str, ProcessSpec]:
    fleet = Fleet.model_validate(
        {
            "name": "demo",
            "gateways": {"gw": {"listen": "0.0.0.0:8000"}},
            "pools": {"gpu": {"gpus": 1, "node_labels": {"zone": "a"}, "resources": {"ssd": 1}, "placement": "apart"}},
        }
    )
    return processes(fleet, Path("/srv"), "ray")


def test_a_spec_that_was_sent_is_equal() -> None:
    # Otherwise a new supervisor would restart every process.
    for spec in specs().values():
        assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b'{"role":"worker","pool":"gpu","arguments":["serve"],"needs":3}', ("worker", ("serve",), "gpu")),
        (b'{"role":"cache","pool":7,"arguments":"serve"}', ("gateway", (), "")),
        (b"\xff no JSON", ("gateway", (), "")),
    ],
)
def test_a_spec_of_another_release_keeps_what_can_be_read(value: bytes, read: tuple[object, ...]) -> None:
    spec = read_spec("gpu-1", value)
    assert (spec.name, spec.role, spec.arguments, spec.pool, spec.needs) == ("gpu-1", *read, None)


def test_a_report_that_was_sent_is_equal() -> None:
    report = Report(3, "x", "n1", "10.0.0.1", 7, 1.5, 1, "/logs/a.log", (ExitReport(2, 6, -9, 0.1, ("killed",)),))
    assert decode_report(encode_report(report)) == report


def test_the_address_of_the_node_is_filled_in() -> None:
    worker, gateway = (placed(specs()[name], "10.0.0.7").arguments for name in ("gpu-1", "gw"))
    assert worker[worker.index("--host") + 1] == "10.0.0.7"
    assert gateway[gateway.index("--advertise") + 1] == "10.0.0.7"
    assert gateway[gateway.index("--listen") + 1] == "0.0.0.0:8000"
    assert NODE_ADDRESS not in (*worker, *gateway)
