"""The expiry of certificates on the page: the first of a process's listeners, of all processes."""

from __future__ import annotations

import dataclasses

from isochrone.multiprocess.metrics.gauge_rules import rule
from isochrone.observe.loop_lag import LoopLag
from isochrone.observe.metrics.wire import wire_metrics
from isochrone.observe.snapshot import WireSnapshot

NAME = "isochrone_certificate_expiry_timestamp_seconds"
WIRE = WireSnapshot(0, 0, 0, 0, 0, 0, LoopLag().histogram())


def shown(wire: WireSnapshot) -> list[float]:
    (family,) = (family for family in wire_metrics(wire) if family.name == NAME)
    return [sample.value for sample in family.samples]


def test_without_tls_there_is_no_sample() -> None:
    assert shown(WIRE) == []
    assert shown(dataclasses.replace(WIRE, certificate_expires=1e9)) == [1e9]


def test_of_several_processes_the_first_to_expire_counts() -> None:
    assert rule(NAME, "gauge") == "smallest"
    assert rule("isochrone_gateway_store_connected", "gauge") == "smallest"
