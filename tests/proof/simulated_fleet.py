"""A fleet that keeps its promises, as arithmetic: several gateways over one register of versions.

The histories it makes are correct by construction, which is what a checker is tested with: it must find nothing in
them, and must find what is put into them. No clock, no threads: instants are whole numbers drawn from a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.control.checker import FAST, STRICT, Commit
from bench.control.history import ERROR, Answer

STAGES = ("stage_a", "stage_b")
PIPELINES = {"chain": STAGES}
_MODELS = ("solo", "chain")


@dataclass(frozen=True)
class Run:
    """What happened, and what the clients' side knows of the commits."""

    history: list[Answer]
    commits: list[Commit]
    #: When each commit really happened.
    instants: list[int]


def simulate(seed: int, *, commits: int = 6, requests: int = 60, gateways: int = 3) -> Run:
    """Random commits of random models, fast and strict, versions coming back now and then; random requests."""
    draw = random.Random(seed)
    made, instants = _commits(draw, commits)
    views = [_view(draw, made, instants) for _ in range(gateways)]
    horizon = instants[-1] + 400
    history = [_request(draw, number, made, views, horizon) for number in range(requests)]
    return Run(history, made, instants)


def _commits(draw: random.Random, count: int) -> tuple[list[Commit], list[int]]:
    versions = {"solo": "1", "chain": "1", "stage_a": "1", "stage_b": "1"}
    made, instants, now = [Commit(1, versions)], [0], 100
    for number in range(count):
        asked = now + draw.randrange(50)
        instant = asked + 1 + draw.randrange(100)
        settled = instant + 1 + draw.randrange(100)
        changed = draw.choice([("solo",), STAGES, ("chain", *STAGES), ("solo", "stage_b"), ("stage_a",)])
        versions = {**versions, **{model: str(draw.randrange(1, 4)) for model in changed}}
        cutover = draw.choice([FAST, STRICT, STRICT])
        known = settled if draw.random() < 0.7 else None
        made.append(Commit(number + 2, versions, cutover, asked_ns=asked, settled_ns=known))
        instants.append(instant)
        now = settled
    return made, instants


def _view(draw: random.Random, commits: list[Commit], instants: list[int]) -> list[int]:
    """When one gateway goes over to each epoch: at once for a strict one, some time after the commit for a fast one.

    A strict commit waits for every gateway, so no gateway is behind an earlier epoch when it happens.
    """
    seen: list[int] = []
    for place, (commit, instant) in enumerate(zip(commits, instants, strict=True)):
        at = instant if commit.cutover == STRICT or place == 0 else instant + draw.randrange(300)
        later = [instants[n] for n in range(place + 1, len(commits)) if commits[n].cutover == STRICT]
        seen.append(max([min([at, *later]), *seen[-1:]]))
    return seen


def _request(draw: random.Random, number: int, commits: list[Commit], views: list[list[int]], horizon: int) -> Answer:
    started = 1 + draw.randrange(horizon)
    admitted = started + draw.randrange(30)
    ended = admitted + draw.randrange(150)
    gateway = draw.randrange(len(views))
    place = max(place for place, at in enumerate(views[gateway]) if at <= admitted)
    model = draw.choice(_MODELS)
    identity = (f"client-{number}", f"gateway-{gateway}", model, started, ended)
    if draw.random() < 0.1:
        return Answer(*identity, outcome=ERROR, error="connection reset")
    versions = commits[place].versions
    names = PIPELINES.get(model, (model,))
    return Answer(*identity, versions[model], tuple((name, versions[name]) for name in names))
