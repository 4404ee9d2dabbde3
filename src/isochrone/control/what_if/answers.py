"""The answer to a question about the fleet: figures of today and of the changed fleet, and their meaning. Pure data."""

from __future__ import annotations

import msgspec

from isochrone.control.what_if.situation import MeasuredModel

#: Verdicts. All models do as well as today, within the noise of the simulation; some are slower or miss more deadlines;
#: some lose a good part of their requests.
HOLDS, WORSE, BREAKS = "holds", "worse", "breaks"


class ModelOutcome(msgspec.Struct, frozen=True):
    """One model in one simulation. Latencies are those of answered and late requests, as the gateway's callers see
    them."""

    #: Requests per second that callers offer, and that are answered within their deadlines.
    rate: float
    goodput: float
    p50_ms: float
    p99_ms: float
    mean_ms: float
    #: Shares of all requests: late, or dropped because they would be; rejected on arrival; failed.
    missed: float
    rejected: float
    failed: float
    #: The share of the time that the instances of its workers are busy.
    utilisation: float
    workers: int


class WorkerOutcome(msgspec.Struct, frozen=True):
    """One worker in one simulation. Latencies are those inside the worker."""

    #: Answers per second.
    rate: float
    p50_ms: float
    p99_ms: float
    #: The share of the time that the instances of its busiest model are busy.
    utilisation: float


class ModelAnswer(msgspec.Struct, frozen=True):
    name: str
    deadline_ms: float
    today: ModelOutcome
    then: ModelOutcome
    #: What the gateways measured, beside ``today``: how far the simulation can be trusted. None: nothing was measured.
    measured: MeasuredModel | None = None


class WorkerAnswer(msgspec.Struct, frozen=True):
    name: str
    pool: str
    #: None: it is not there.
    today: WorkerOutcome | None = None
    then: WorkerOutcome | None = None


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """The answer to one question."""

    questions: tuple[str, ...]
    #: "holds", "worse" or "breaks".
    verdict: str
    #: The verdict in sentences, the worst first.
    sentences: tuple[str, ...]
    #: How near the simulation of today comes to what was measured, one sentence per model.
    trust: tuple[str, ...]
    models: tuple[ModelAnswer, ...]
    workers: tuple[WorkerAnswer, ...]
    #: By model that is not simulated: why.
    left_out: dict[str, str]
    assumptions: tuple[str, ...]
    #: The same situation, question, seed and seconds give the same answer, byte for byte.
    seed: int
    simulated_seconds: float
    #: Simulated requests of both runs.
    requests: int
    #: Seconds over which the load was measured; 0: it was not.
    measured_seconds: int = 0
