"""A process that cannot listen: its advice names the key of fleet.yaml, not a flag that nobody typed."""

from __future__ import annotations

import pytest

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.engines.supervision.listen_errors import by_fleet_key

FLEET = fleet_of(
    {
        "name": "plant",
        "control": {"count": 2},
        "gateways": {
            "gw": {"listen": "127.0.0.1:7000", "count": 2, "processes": 2, "metrics_port": 7100},
            "edge-2": {"listen": "127.0.0.1:7200", "metrics_port": -1},
        },
        "pools": {"cpu": {"workers": 2, "first_port": 7300}},
    }
)


@pytest.mark.parametrize(
    ("process", "flag", "key"),
    [
        ("control-2", "--listen", "control.listen"),
        ("gw-2.1", "--listen", "gateways.gw.listen"),
        ("gw-1.1", "--metrics-port", "gateways.gw.metrics_port"),
        ("edge-2", "--listen", "gateways.edge-2.listen"),
        ("cpu-2", "--grpc-port", "pools.cpu.first_port"),
    ],
)
def test_the_advice_names_the_key(process: str, flag: str, key: str) -> None:
    line = f"isochrone: cannot listen on 127.0.0.1:1: address already in use; choose another with {flag}"
    expected = f"isochrone: cannot listen on 127.0.0.1:1: address already in use; change {key} in fleet.yaml"
    assert by_fleet_key(line, process, FLEET) == expected


def test_other_lines_and_processes_of_no_key_are_left_alone() -> None:
    assert by_fleet_key("killed", "cpu-1", FLEET) == "killed"
    line = "cannot listen; choose another with --http-port"
    assert by_fleet_key(line, "gpu-1", FLEET) == line
