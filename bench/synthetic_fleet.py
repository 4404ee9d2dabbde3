"""A fleet that is only records and figures: as many workers and models as wanted, without a process. For the console's
bench and its tests, which need a large fleet on a small machine. Deterministic by seed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from isochrone.control.figures.frames import (
    COMPUTE,
    GATEWAY,
    QUEUE,
    WORKER,
    Frame,
    GatewayFigures,
    ModelFigures,
    StageFigures,
    WorkerFigures,
)
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, EventRecord, FleetRecord, Split
from isochrone.control.state.rollout_records import CanaryRule, Change, Progress, RolloutRecord
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS
from isochrone.store.base import Put, Store

#: Name, tier and device of each pool, and its share of the workers.
_POOLS = (("edge", "edge", "cpu", 0.5), ("core", "core", "cpu", 0.3), ("gpu", "core", "gpu", 0.2))
#: Name, version, deadline in milliseconds, requests per second, mean in milliseconds.
_MODELS = (
    ("preprocess", "2", 0.0, 900.0, 1.4),
    ("detector", "4", 40.0, 850.0, 11.0),
    ("tracker", "1", 80.0, 320.0, 18.0),
    ("pipeline", "4", 100.0, 640.0, 24.0),
)


def _models(count: int) -> tuple[tuple[str, str, float, float, float], ...]:
    """The first ones are a plant's; further ones have a tenth of their load."""
    further = (
        (f"{name}-{index // len(_MODELS)}", version, deadline, rate / 10, mean)
        for index in range(len(_MODELS), count)
        for name, version, deadline, rate, mean in (_MODELS[index % len(_MODELS)],)
    )
    return (*_MODELS, *further)[:count]


class SyntheticFleet:
    def __init__(
        self,
        workers: int = 100,
        gateways: int = 2,
        seed: int = 1,
        *,
        models: int = len(_MODELS),
        host: str = "10.0.0.1",
        ports: Sequence[int] = (),
    ) -> None:
        """``host`` and ``ports``: of the workers; without ports, nothing listens there."""
        self.keys = Keys("plant")
        self._random = random.Random(seed)
        self.models = _models(models)
        self._workers: list[WorkerRecord] = []
        for pool, tier, device, share in _POOLS:
            for number in range(1, max(1, round(workers * share)) + 1):
                index = len(self._workers)
                port = ports[index] if ports else 20_000 + index
                self._workers.append(
                    WorkerRecord(f"{pool}-{number}", host, port, port, 0, pool, tier, device, incarnation="a")
                )
        self._gateways = [
            GatewayRecord(f"gw-{number}", "10.0.0.2", 8000 + number, incarnation="a", epoch=7)
            for number in range(1, gateways + 1)
        ]
        #: By worker: how loaded it is, 0 to 1; it drifts.
        self._loads = {each.name: self._random.random() for each in self._workers}

    async def write(self, store: Store, *, canary: bool = True) -> None:
        """The records of a fleet that serves, with a rollout of the detector in canary."""
        now = time.time()
        models = {
            name: Assignment(
                version,
                f"{index + 1}a7c{index}e9b4d2f" * 4,
                str(int(version) - 1) if version != "1" else "",
                canary=Split("5", "9f", 0.05) if canary and name == "detector" else None,
                stages=("preprocess", "detector") if name == "pipeline" else (),
                pools=tuple(pool for pool, *_ in _POOLS),
                epoch=7,
            )
            for index, (name, version, *_) in enumerate(self.models)
        }
        spec = {
            "name": "plant",
            "pools": {pool: {"tier": tier, "device": device} for pool, tier, device, _ in _POOLS},
            "models": {name: {"slo": {"deadline_ms": deadline}} for name, _, deadline, *_ in self.models},
        }
        events = [
            ("leads", "", "since the last leader's lease expired", "c1"),
            ("rollout done", "r6", "pipeline 3 → 4, detector 3 → 4", "c1"),
            ("worker drained", "edge-3", "", "ada@desk"),
            ("rollout started", "r7", "detector 4 → 5; fast, canary", "ada@desk"),
        ]
        puts = [
            Put(self.keys.fleet, encode(FleetRecord(3, "name: plant", spec, "/srv/plant"))),
            Put(self.keys.epoch, encode(EpochRecord(7, models, "r7", "ada", now))),
            Put(self.keys.leader, b"c1"),
            *(Put(self.keys.worker(each.name), encode(each)) for each in self._workers),
            *(Put(self.keys.gateway(each.name), encode(each)) for each in self._gateways),
            *(
                Put(f"{self.keys.events}{index}", encode(EventRecord(now - 300 + 60 * index, who, what, about, detail)))
                for index, (what, about, detail, who) in enumerate(events)
            ),
            Put(self.keys.rollout("r6"), encode(self._rollout("r6", "done", now - 4000))),
        ]
        if canary:
            puts.append(Put(self.keys.rollout("r7"), encode(self._rollout("r7", "canary", now - 120))))
        outcome = await store.transact([], puts)
        assert outcome.succeeded

    def _rollout(self, identity: str, state: str, at: float) -> RolloutRecord:
        return RolloutRecord(
            identity,
            {"detector": Change("5" if state == "canary" else "4", "4" if state == "canary" else "3")},
            state,
            canary=CanaryRule(),
            by="ada@desk",
            at=at,
            since={"pending": at, "preparing": at + 1, "canary": at + 30, "done": at + 200 if state == "done" else 0},
            workers={each.name: Progress("ready") for each in self._workers},
            step=0,
            note="5%: 310 of 500 requests of the new version" if state == "canary" else "",
        )

    def frame(self, at: int) -> Frame:
        """The figures of one second."""
        workers = {}
        for each in self._workers:
            load = self._loads[each.name]
            load = self._loads[each.name] = min(1.0, max(0.0, load + self._random.gauss(0, 0.06)))
            in_flight = round(load * 12)
            queued = max(0, in_flight - 6)
            wait = round(queued * load * 2.2e6)
            workers[each.name] = WorkerFigures(
                each.name, each.address, each.tier, each.device, in_flight, queued, wait, round_trip_s=0.0004
            )
        models = {}
        for name, version, _, rate, mean in self.models:
            models[name, version] = self._model(name, version, rate, mean)
        models["detector", "5"] = self._model("detector", "5", 45.0, 10.2)
        gateways = {
            each.name: GatewayFigures(
                each.name, True, round(1300 + self._random.gauss(0, 40)), self._random.randrange(3),
                self._random.randrange(9), 40, StageFigures(1300 * 62_000, 1300),
            )
            for each in self._gateways
        }  # fmt: skip
        return Frame(at, models, workers, gateways)

    def _model(self, name: str, version: str, rate: float, mean_ms: float) -> ModelFigures:
        answered = max(1, round(self._random.gauss(rate, rate**0.5)))
        durations: dict[int, int] = {}
        total = 0
        # A few dozen draws stand for all: the shape is what counts.
        draws = min(answered, 60)
        for _ in range(draws):
            took = round(self._random.lognormvariate(0, 0.35) * mean_ms * 1e6)
            total += took * answered // draws
            bucket = next(
                (index for index, bound in enumerate(BUCKET_BOUNDS_NS) if took <= bound), len(BUCKET_BOUNDS_NS)
            )
            durations[bucket] = durations.get(bucket, 0) + max(1, answered // draws)
        worker = round(total * 0.97)
        stages = {
            GATEWAY: StageFigures(total - worker, answered),
            WORKER: StageFigures(worker, answered),
            QUEUE: StageFigures(round(mean_ms * 0.2e6) * 10, 10),
            COMPUTE: StageFigures(round(mean_ms * 0.65e6) * 10, 10),
        }
        return ModelFigures(name, version, answered, 1, self._random.randrange(2), 0, 0, 0, durations, total, stages)
