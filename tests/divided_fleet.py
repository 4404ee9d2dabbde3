"""A fleet with a divided model: its first stage in one pool, its second in another, and callers who recognize versions.

Each version has other weights, so that an answer is of one of them, or of stages of two.
"""

from __future__ import annotations

import itertools
import math
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import isochrone
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import MODELS, write_repository
from bench.ports import ports_in_a_row
from bench.worker.peers.process import HOST
from divided_repository import NAME, expected, images, write_divided

EDGE_POOL, CORE_POOL = "cpu", "far"
_LIMIT = 120.0
_SECONDS = {"cut-6": (0.001, 0.002), "edge": (0.5, 0.0)}


def divided_fleet(directory: Path, *, keeps_one: bool, cores: int = 2, versions: int = 2) -> SupervisedFleet:
    """Not started yet. ``keeps_one``: the model is a cut alone, without another division to fall back on."""
    first = ports_in_a_row(3 * cores)
    endpoints = ",".join(f"{HOST}:{first + 3 * index}" for index in range(cores))
    edge, core = directory / "edge", directory / "core"
    for version in range(1, versions + 1):
        made = directory / f"version-{version}"
        write_divided(made, endpoints, _SECONDS, version=version, keeps_one=keeps_one)
        for tier in (edge, core):
            _add_version(made / tier.name, tier, version)
    write_repository(edge, 1)
    names = {tier: [each.name for each in (directory / "version-1" / tier).iterdir()] for tier in ("edge", "core")}
    models: dict[str, dict[str, Any]] = {model: {"pools": [EDGE_POOL]} for model in MODELS}
    models |= {name: {"pools": [EDGE_POOL], "rollout": {"cutover": "strict"}} for name in names["edge"]}
    for name in names["core"]:
        models.setdefault(name, {"pools": []})["pools"].append(CORE_POOL)
    # The stages of the edge change with it already: it is their ensemble.
    models[NAME]["with"] = names["core"]
    shape = Shape(
        workers=1,
        gateways=2,
        controllers=1,
        lease_seconds=1.0,
        pool={"tier": "edge"},
        pools={CORE_POOL: {"workers": cores, "tier": "core", "first_port": first, "repository": str(core)}},
        models=models,
    )
    return SupervisedFleet(directory / "fleet", edge, shape)


def divided_models(fleet: SupervisedFleet) -> list[str]:
    return [name for name in fleet.shape.models if name not in MODELS]


def _add_version(made: Path, repository: Path, version: int) -> None:
    """Copies version 1 of what was written into a repository, as another version."""
    for model in made.iterdir():
        shutil.copytree(model / "1", repository / model.name / str(version))
        shutil.copyfile(model / "config.pbtxt", repository / model.name / "config.pbtxt")


@dataclass(frozen=True)
class Heard:
    """An answer: when it was asked for and had, and the version whose scores it has; 0: of no single version."""

    started: float
    ended: float
    version: int


class DividedLoad:
    """``with DividedLoad(gateways) as load``: several callers, one request at a time each."""

    def __init__(self, gateways: Sequence[str], callers: int = 4, versions: int = 2) -> None:
        self._scores = {version: expected(version=version) for version in range(1, versions + 1)}
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(gateways[index % len(gateways)],)) for index in range(callers)
        ]
        self._changes: list[float] = []
        self.heard: list[Heard] = []
        self.failed: list[str] = []

    def __enter__(self) -> DividedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, version: int, count: int = 40) -> None:
        """Until so many answers of a version have come from now on."""
        before, ends = len(self.heard), time.monotonic() + _LIMIT
        while sum(each.version == version for each in self.heard[before:]) < count:
            assert time.monotonic() < ends, f"no answers of version {version}: {self.heard[-3:]} {self.failed[-3:]}"
            time.sleep(0.02)

    def changes(self) -> None:
        """To be called before each change of the version."""
        self._changes.append(time.monotonic())

    def check(self, *versions: int) -> None:
        """No request failed, none was answered by stages of two versions, and these versions followed each other, one
        change after the other: no request that was sent after the first answer of a version got the one before."""
        assert not self.failed, f"{len(self.failed)} of {len(self.heard) + len(self.failed)}: {self.failed[:5]}"
        bounds = [0.0, *self._changes, math.inf]
        assert len(bounds) == len(versions) + 1
        old = versions[0]
        for (begin, end), new in zip(itertools.pairwise(bounds), versions, strict=True):
            heard = [each for each in self.heard if begin <= each.started < end]
            counts = Counter(each.version for each in heard)
            assert set(counts) in ({old, new}, {new}), counts
            first = min(each.ended for each in heard if each.version == new)
            late = [each for each in heard if each.started > first and each.version != new]
            assert not late, f"{len(late)} of {counts} after the first answer of version {new}: {late[:3]}"
            old = new

    def _ask(self, gateway: str) -> None:
        with isochrone.Client(gateway) as client:
            while not self._over.is_set():
                started = time.monotonic()
                try:
                    scores = client.infer(NAME, images(), deadline_ms=20_000)["scores"]
                except Exception as error:  # whatever it is, a request failed
                    self.failed.append(f"{type(error).__name__}: {error}")
                    time.sleep(0.05)
                    continue
                self.heard.append(Heard(started, time.monotonic(), self._version_of(scores)))
                time.sleep(0.005)

    def _version_of(self, scores: Any) -> int:
        close = [version for version, each in self._scores.items() if np.allclose(scores, each, rtol=1e-3, atol=1e-5)]
        return close[0] if len(close) == 1 else 0
