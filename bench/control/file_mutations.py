"""Wrong and restructured fleet.yaml files, drawn from a seed: each is the applied file with one change. Pure.

A change states whether it must be accepted or rejected, and what the error must name. A change that would take away a
model that the clients of a run use is expected to be rejected.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from bench.control.models import CHAIN, SOLO, STAGES

Document = dict[str, Any]

#: Versions of ``solo`` that cannot be: a file that broke off, and a model that fails its warm-up.
CORRUPT, FAILING = 8, 9
#: A model that no client uses.
SPARE = "spare"
#: Gateways that no client uses.
SIDE = "side"
#: Free ports for them; one more is for a gateway that clients use.
_SIDE_PORTS = 4


@dataclass(frozen=True)
class Mutated:
    """One file."""

    kind: str
    text: str
    #: What the rejection must name; "": the file must be applied.
    refused: str = ""
    #: The user agrees to what the plan takes away.
    agrees: bool = False
    #: The rollout that it starts must be aborted.
    aborts: bool = False


@dataclass(frozen=True)
class Places:
    """What files may name on the machine of a run."""

    repository: str
    #: The same models elsewhere; a directory without models; one whose models have no version that is served.
    copy: str
    hollow: str
    other: str
    #: The first of a few free ports.
    free_port: int


class Mutations:
    """The files of a run, one after the other; every kind is drawn before one comes again."""

    def __init__(self, seed: int, places: Places) -> None:
        self._random = random.Random(seed)
        self._places = places
        self._pools = iter(range(1, 1000))
        self._waiting: list[Callable[[Document], Mutated]] = []

    def next(self, applied: Document) -> Mutated:
        if not self._waiting:
            self._waiting = list(self._kinds())
            self._random.shuffle(self._waiting)
        return self._waiting.pop()(copy.deepcopy(applied))

    def _kinds(self) -> Iterator[Callable[[Document], Mutated]]:
        yield from (self._typo, self._wrong_type, self._two_mistakes, self._no_yaml, self._aliases)
        yield from (self._wrong_repository, self._hollow_repository, self._other_repository, self._both_repositories)
        yield from (self._unknown_pool, self._unknown_version, self._parted_ensemble, self._nothing_served)
        yield from (self._another_fleet, self._moved_gateway, self._no_certificate, self._stage_canary)
        yield from (self._renamed_pool, self._moved_models, self._more_workers, self._moved_repository)
        yield from (self._another_version, self._another_pipeline, self._corrupt_version, self._failing_version)
        yield from (self._spare_model, self._side_gateway, self._rules, self._worker_memory, self._without_effect)

    # Rejected.

    def _typo(self, file: Document) -> Mutated:
        section = self._random.choice([file["pools"][pool] for pool in file["pools"]] + [file["gateways"]["gw"]])
        key = self._random.choice(sorted(section))
        at = self._random.randrange(len(key) - 1)
        wrong = key[:at] + key[at + 1] + key[at] + key[at + 2 :]
        wrong = wrong if wrong != key else f"{key}x"
        section[wrong] = section.pop(key)
        return _file("typo", file, refused=wrong)

    def _wrong_type(self, file: Document) -> Mutated:
        pool = next(iter(file["pools"]))
        path, key, value = self._random.choice(
            [
                (("pools", pool), "workers", "many"),
                (("pools", pool), "memory", "2gb"),
                (("gateways", "gw"), "count", 0),
                (("gateways", "gw"), "listen", 8000),
                (("models", SOLO), "version", "one"),
                (("store",), "lease_seconds", -1),
            ]
        )
        section = file
        for step in path:
            section = section[step]
        section[key] = value
        return _file("wrong type", file, refused=".".join((*path, key)))

    def _two_mistakes(self, file: Document) -> Mutated:
        """Errors of two kinds: of a key's type, and of missing files. Both must be reported."""
        file["repository"] = f"{self._places.repository}x"
        file["control"]["count"] = "two"
        return _file("two mistakes", file, refused="control.count repository")

    def _no_yaml(self, file: Document) -> Mutated:
        text = yaml.safe_dump(file)
        at = self._random.randrange(len(text) // 2, len(text))
        return Mutated("no YAML", f"{text[:at]}\n{{{text[at:]}", refused="expected")

    def _aliases(self, file: Document) -> Mutated:
        levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
        return Mutated("aliases", "\n".join(["a0: &a0 [x, x]", *levels, yaml.safe_dump(file)]), refused="aliases")

    def _wrong_repository(self, file: Document) -> Mutated:
        file["repository"] = self._random.choice([f"{self._places.repository}s", "~nosuchuser/models"])
        return _file("wrong repository", file, refused="repository")

    def _hollow_repository(self, file: Document) -> Mutated:
        file["repository"] = self._places.hollow
        return _file("hollow repository", file, refused=self._places.hollow)

    def _other_repository(self, file: Document) -> Mutated:
        file["repository"] = self._places.other
        return _file("repository without the served versions", file, refused=SOLO)

    def _both_repositories(self, file: Document) -> Mutated:
        file["repository"] = [self._places.repository, self._places.copy]
        return _file("one model in two repositories", file, refused=self._places.copy)

    def _unknown_pool(self, file: Document) -> Mutated:
        file["models"][SOLO]["pools"] = ["nowhere"]
        return _file("unknown pool", file, refused=f"models.{SOLO}.pools")

    def _unknown_version(self, file: Document) -> Mutated:
        file["models"][SOLO]["version"] = 77
        return _file("unknown version", file, refused=f"models.{SOLO}.version")

    def _parted_ensemble(self, file: Document) -> Mutated:
        file["pools"]["apart"] = {"workers": 1}
        file["models"][CHAIN]["pools"] = [next(iter(file["pools"]))]
        file["models"][STAGES[0]]["pools"] = ["apart"]
        return _file("parted ensemble", file, refused=f"models.{CHAIN}.pools")

    def _nothing_served(self, file: Document) -> Mutated:
        """Clients would lose a model, without agreement."""
        kind = self._random.choice(["model", "pools", "workers"])
        if kind == "model":
            del file["models"][SOLO]
            return _file("a model less", file, refused=f"model {SOLO}")
        pool = next(iter(file["pools"]))
        if kind == "workers":
            file["pools"][pool]["workers"] = 0
        else:
            file["pools"] = {f"bare-{next(self._pools)}": {"workers": 0}}
            _unplaced(file)
        return _file(f"no {kind}", file, refused=f"pool {pool}")

    def _another_fleet(self, file: Document) -> Mutated:
        if self._random.random() < 0.5:
            file["name"] = "another"
            return _file("another name", file, refused="name")
        file["store"]["url"] = "sqlite:another.db"
        return _file("another store", file, refused="store.url")

    def _moved_gateway(self, file: Document) -> Mutated:
        """Clients would lose their address, or be interrupted, without agreement."""
        if self._random.random() < 0.5:
            file["gateways"]["gw"]["listen"] = f"127.0.0.1:{self._places.free_port + _SIDE_PORTS}"
        else:
            file["store"]["lease_seconds"] = file["store"]["lease_seconds"] + 1
        return _file("moved gateway", file, refused="gateway gw")

    def _no_certificate(self, file: Document) -> Mutated:
        file["security"] = {"tls": {"cert": "no.pem", "key": "no.key", "ca": "no.pem"}}
        return _file("no certificate", file, refused="security.tls.cert")

    def _stage_canary(self, file: Document) -> Mutated:
        stage = file["models"][STAGES[0]]
        stage["version"] = 1 + int(stage["version"]) % 3
        stage["rollout"] = {"canary": True}
        return _file("canary of a stage", file, refused=f"models.{STAGES[0]}.rollout.canary")

    # Applied.

    def _renamed_pool(self, file: Document) -> Mutated:
        pools = file["pools"]
        old = self._random.choice(sorted(pools))
        new = f"pool-{next(self._pools)}"
        settings = {key: value for key, value in pools[old].items() if key != "first_port"}
        file["pools"] = {new if name == old else name: settings if name == old else pools[name] for name in pools}
        for model in file["models"].values():
            if "pools" in model:
                model["pools"] = [new if pool == old else pool for pool in model["pools"]]
        return _file("renamed pool", file, agrees=True)

    def _moved_models(self, file: Document) -> Mutated:
        """To a pool of their own, or back to wherever there is one."""
        if len(file["pools"]) == 1:
            file["pools"][f"pool-{next(self._pools)}"] = {"workers": 1}
        target = self._random.choice(sorted(file["pools"]))
        for name in self._random.choice([(SOLO,), (CHAIN, *STAGES), (SOLO, CHAIN, *STAGES)]):
            file["models"][name]["pools"] = [target]
        served = {pool for model in file["models"].values() for pool in model.get("pools", file["pools"])}
        file["pools"] = {name: pool for name, pool in file["pools"].items() if name in served}
        return _file("moved models", file, agrees=True)

    def _more_workers(self, file: Document) -> Mutated:
        pool = file["pools"][self._random.choice(sorted(file["pools"]))]
        pool["workers"] = 1 + pool["workers"] % 2
        return _file("another number of workers", file)

    def _moved_repository(self, file: Document) -> Mutated:
        places = self._places
        file["repository"] = places.copy if file["repository"] == places.repository else places.repository
        return _file("moved repository", file)

    def _another_version(self, file: Document) -> Mutated:
        model = file["models"][SOLO]
        model["version"] = 1 + int(model["version"]) % 3
        model["rollout"] = {"cutover": self._random.choice(["fast", "strict"])}
        return _file("another version", file)

    def _another_pipeline(self, file: Document) -> Mutated:
        for name in (CHAIN, *STAGES):
            model = file["models"][name]
            model["version"] = 1 + int(model["version"]) % 3
            model.pop("rollout", None)
        return _file("another pipeline", file)

    def _corrupt_version(self, file: Document) -> Mutated:
        file["models"][SOLO]["version"] = CORRUPT
        return _file("corrupt version", file, aborts=True)

    def _failing_version(self, file: Document) -> Mutated:
        """With a pool renamed in the same file: neither may leave clients without an answer."""
        mutated = yaml.safe_load(self._renamed_pool(file).text)
        mutated["models"][SOLO]["version"] = FAILING
        return _file("failing version in a renamed pool", mutated, agrees=True, aborts=True)

    def _spare_model(self, file: Document) -> Mutated:
        models = file["models"]
        if models.pop(SPARE, None) is not None:
            return _file("a spare model less", file, agrees=True)
        models[SPARE] = {"version": 1}
        return _file("a spare model more", file)

    def _side_gateway(self, file: Document) -> Mutated:
        gateways = file["gateways"]
        if SIDE in gateways and self._random.random() < 0.5:
            del gateways[SIDE]
        else:
            port = self._places.free_port + self._random.randrange(_SIDE_PORTS)
            gateways[SIDE] = {"listen": f"127.0.0.1:{port}", "metrics_port": 0}
        return _file("side gateway", file, agrees=True)

    def _rules(self, file: Document) -> Mutated:
        model = file["models"][self._random.choice([SOLO, CHAIN])]
        model["slo"] = {"deadline_ms": self._random.choice([5000, 10000, 20000])}
        model["policy"] = self._random.choice(["prequal", "round_robin", "random"])
        file["traffic"] = {"outliers": {"consecutive_failures": self._random.randrange(3, 9)}}
        return _file("rules", file)

    def _worker_memory(self, file: Document) -> Mutated:
        pool = file["pools"][self._random.choice(sorted(file["pools"]))]
        pool["memory"] = "2GiB" if pool.get("memory") == "1GiB" else "1GiB"
        return _file("restarted workers", file)

    def _without_effect(self, file: Document) -> Mutated:
        file["observability"] = {"log": {"level": self._random.choice(["debug", "warning"])}}
        return _file("settings without effect", file)


def _unplaced(file: Document) -> None:
    for model in file["models"].values():
        model.pop("pools", None)


def _file(kind: str, file: Document, **fields: Any) -> Mutated:
    return Mutated(kind, yaml.safe_dump(file, sort_keys=False), **fields)
