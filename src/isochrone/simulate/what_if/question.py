"""Questions as texts (``lose=w3``, ``load=2``, ``policy=prequal``, ``add=gpu:2``), and the fleet that they ask for.

Several questions at once are one changed fleet. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from isochrone.control.what_if.situation import Situation, SituationWorker
from isochrone.errors import InvalidArgument
from isochrone.gateway.policies import NAMES
from isochrone.suggestions import suggestion

#: What is allowed, for errors and for the help of the command line.
FORMS = "lose=WORKER[,WORKER], load=FACTOR, load=MODEL:FACTOR, policy=NAME or add=POOL:WORKERS"
#: Short names of policies that people use.
_SHORT = {"p2c": "power_of_two", "rr": "round_robin", "wrr": "weighted_round_robin", "lc": "least_connections"}
_MOST_QUESTIONS = 32
_MOST_FACTOR = 1000.0
_MOST_ADDED = 1000
#: Digits of a number of workers, and characters of one question.
_MOST_DIGITS = 6
_MOST_CHARACTERS = 100_000
#: Names that an error lists.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class LoseWorkers:
    """These workers are gone, for good."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Every caller sends so many times as much; ``model`` "": for all models."""

    factor: float
    model: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """Gateways choose workers by another policy, for all models."""

    name: str


@dataclass(frozen=True, slots=True)
class AddWorkers:
    """So many workers more, each like the first of the pool."""

    pool: str
    workers: int


Change: TypeAlias = LoseWorkers | Load | Policy | AddWorkers


def parse_questions(texts: Sequence[str]) -> tuple[Change, ...]:
    """Raises ``InvalidArgument`` that names what is allowed."""
    if not texts or len(texts) > _MOST_QUESTIONS:
        raise InvalidArgument(f"expected from 1 to {_MOST_QUESTIONS} questions ({FORMS}), given {len(texts)}")
    return tuple(map(_parse, texts))


def _parse(text: str) -> Change:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(f"question: expected at most {_MOST_CHARACTERS} characters, given {len(text)}")
    kind, equals, value = text.strip().partition("=")
    value = value.strip()
    reader = _READERS.get(kind.strip())
    if reader is None or not equals or not value:
        raise InvalidArgument(f"question: expected {FORMS}, given '{text[:100]}'")
    return reader(value)


def _lose(value: str) -> Change:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise InvalidArgument(f"lose: expected names of workers, with commas between them, given '{value[:100]}'")
    return LoseWorkers(names)


def _load(value: str) -> Change:
    # The name of a model may have a ":" itself.
    model, _, number = value.rpartition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not 0 < factor <= _MOST_FACTOR:
        expected = f"FACTOR or MODEL:FACTOR, a factor above 0 and up to {_MOST_FACTOR:g}"
        raise InvalidArgument(f"load: expected {expected}, given '{value[:100]}'")
    return Load(factor, model)


def _policy(value: str) -> Change:
    name = _SHORT.get(value, value)
    if name not in NAMES:
        raise InvalidArgument(f"policy: expected {suggestion(name[:100], NAMES, 'policy')}, given '{value[:100]}'")
    return Policy(name)


def _add(value: str) -> Change:
    pool, _, number = value.rpartition(":")
    is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    if not pool or not is_number or not 1 <= int(number) <= _MOST_ADDED:
        raise InvalidArgument(f"add: expected POOL:WORKERS, from 1 to {_MOST_ADDED} workers, given '{value[:100]}'")
    return AddWorkers(pool, int(number))


_READERS: dict[str, Callable[[str], Change]] = {"lose": _lose, "load": _load, "policy": _policy, "add": _add}


def changed(situation: Situation, changes: Iterable[Change]) -> Situation:
    """The situation after all changes. Raises ``InvalidArgument`` for names that it does not have."""
    for change in changes:
        if isinstance(change, LoseWorkers):
            situation = _without(situation, change)
        elif isinstance(change, Load):
            situation = _loaded(situation, change)
        elif isinstance(change, Policy):
            situation = msgspec.structs.replace(situation, rules=_with_policy(situation.rules, change.name))
        else:
            situation = _grown(situation, change)
    return situation


def _without(situation: Situation, change: LoseWorkers) -> Situation:
    known = {worker.name for worker in situation.workers}
    if unknown := [name for name in change.names if name not in known]:
        raise InvalidArgument(f"lose: expected a worker that serves ({_some(known)}), given '{unknown[0][:100]}'")
    lost = set(change.names)
    left = tuple(worker for worker in situation.workers if worker.name not in lost)
    return msgspec.structs.replace(situation, workers=left)


def _loaded(situation: Situation, change: Load) -> Situation:
    names = {model.name for model in situation.models}
    if change.model and change.model not in names:
        raise InvalidArgument(f"load: expected a model with requests ({_some(names)}), given '{change.model[:100]}'")
    models = tuple(
        msgspec.structs.replace(model, rate=model.rate * change.factor) if change.model in ("", model.name) else model
        for model in situation.models
    )
    return msgspec.structs.replace(situation, models=models)


def _with_policy(rules: dict[str, object], policy: str) -> dict[str, object]:
    def replaced(given: object) -> dict[str, object]:
        kept = dict(given) if isinstance(given, dict) else {}
        # Options are of the policy they were written for.
        kept.pop("policy_options", None)
        return {**kept, "policy": policy}

    models = rules.get("models")
    named = {name: replaced(each) for name, each in models.items()} if isinstance(models, dict) else {}
    return {**rules, "defaults": replaced(rules.get("defaults")), "models": named}


def _grown(situation: Situation, change: AddWorkers) -> Situation:
    alike = [worker for worker in situation.workers if worker.pool == change.pool]
    if not alike:
        pools = {worker.pool for worker in situation.workers}
        raise InvalidArgument(f"add: expected a pool with a worker ({_some(pools)}), given '{change.pool[:100]}'")
    names = {worker.name for worker in situation.workers}
    added: list[SituationWorker] = []
    number = 1
    while len(added) < change.workers:
        name = f"{change.pool}-added-{number}"
        number += 1
        if name not in names:
            added.append(msgspec.structs.replace(alike[0], name=name, speeds={}, in_flight=-1))
    return msgspec.structs.replace(situation, workers=(*situation.workers, *added))


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more or "none"
