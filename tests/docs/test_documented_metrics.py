"""Every metric of the pages of workers, gateways and groups of processes is documented, and no other."""

from __future__ import annotations

import re

import numpy as np
import pytest
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from documented import ROOT
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.metrics import GatewayCollector
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.multiprocess.group.sharing import Memory
from isochrone.multiprocess.metrics.group_metrics import GroupCollector
from isochrone.observe.metrics.exposition import Exposition
from isochrone.observe.metrics.gpus import _FAMILIES as GPU_FAMILIES
from isochrone.observe.metrics.gpus import GpuCollector
from isochrone.observe.snapshot import (
    BUCKET_BOUNDS_NS,
    AccessLogSnapshot,
    ActivationSnapshot,
    CacheSnapshot,
    CapturedGraphs,
    DeviceMemory,
    DividedSnapshot,
    GenerationSnapshot,
    Histogram,
    PaddedRows,
    ServerSnapshot,
    TraceSnapshot,
    WireSnapshot,
)
from isochrone.settings.wire_limits import WireLimits

EMPTY = Histogram(np.zeros(len(BUCKET_BOUNDS_NS) + 1, np.int64), 0)
WIRE = WireSnapshot(0, 0, 0, 0, 0, 0, EMPTY)
#: One of everything that a worker may have.
SERVER = ServerSnapshot(
    wire=WIRE,
    cache=CacheSnapshot(0, 0, 1, 0, 0, 0, 0, 0),
    generation=(GenerationSnapshot("m", "1", 0, 0, 0, 0, 0, 0, {}, 0, 0, 0, 0, EMPTY, EMPTY),),
    device_memory=(DeviceMemory("cuda:0", "m", "1", 0, "weights", 0),),
    padded_rows=(PaddedRows("m", "1", 0),),
    captured_graphs=(CapturedGraphs("m", "1", 0),),
    activations=(ActivationSnapshot("m", "1", {}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, False),),
    divided=(DividedSnapshot("m", "1", "edge", {}, {}, {}, 0, True, 0.0, 0.0, 0.0),),
    traces=TraceSnapshot({}, 0, 0),
    access_log=AccessLogSnapshot(0, 0, 0),
)
#: What prometheus_client shows of a process; documented as ``process_*``.
PROCESS = re.compile(r"process_\w+")


def families(page: str) -> set[str]:
    """The families of a page in plain text, those of the process aside."""
    found = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    return {name for name in found if PROCESS.fullmatch(name) is None}


def documented(page: str, section: str = "") -> set[str]:
    """The metrics in the first column of the tables of a page, or of one of its sections."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`((?:isochrone|nv)_\w*\w)[`{]", cell)}


class Gpus(GpuCollector):
    """A GPU that gives every figure."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = (("GPU-1", dict.fromkeys(GPU_FAMILIES, 0.0)),)


def of_collector(collector: Collector) -> set[str]:
    return families(generate_latest(collector).decode())


@pytest.fixture(scope="module")
def of_workers() -> set[str]:
    return families(Exposition(lambda: SERVER, others=(Gpus(),)).render()[0].decode())


@pytest.fixture(scope="module")
def of_gateways() -> set[str]:
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    gateway.fleet.lead()
    return of_collector(GatewayCollector(gateway, lambda: WIRE))


def of_groups() -> set[str]:
    return of_collector(GroupCollector(1, 1, {1: 0}, {1: Memory(1, 1, 1)}))


def test_workers_and_groups(of_workers: set[str]) -> None:
    known = documented("metrics.md")
    shown = of_workers | of_groups()
    assert len(shown) > 80
    assert sorted(shown - known) == [], "not documented in docs/metrics.md"
    assert sorted(known - shown) == [], "documented, and on no page"


def test_gateways(of_gateways: set[str]) -> None:
    known = documented("gateway.md", "Metrics")
    own = {name for name in of_gateways if name.startswith("isochrone_gateway_")}
    assert sorted(own - known) == [], "not documented in docs/gateway.md"
    assert sorted(known - own) == [], "documented, and on no page"
    assert sorted(of_gateways - own - documented("metrics.md")) == []


def test_one_naming_scheme(of_workers: set[str], of_gateways: set[str]) -> None:
    """Units and suffixes, of all names but Triton's."""
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    collected: list[Metric] = [*GatewayCollector(gateway, lambda: WIRE).collect()]
    for family in collected:
        assert family.documentation, family.name
        assert re.fullmatch(r"isochrone_[a-z][a-z_]*[a-z]", family.name), family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family.name
    for name in (of_workers | of_gateways) - {name for name in of_workers if name.startswith("nv_")}:
        assert re.fullmatch(r"isochrone_[a-z][a-z_]*[a-z]", name), name
        assert not re.search(r"_(ms|us|ns|kb|mb|millis|micros)(_total)?$", name), f"{name}: seconds and bytes"
