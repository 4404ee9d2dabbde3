"""``python -m bench.control.applies``: wrong and restructured fleet.yaml files applied to a fleet under load.

Every file is the last one that was taken, with one change drawn from a seed (``file_mutations``). Each is applied
without agreement first, as a careless script would, then with it if the change requires it. Reports failed requests,
files that were accepted or rejected against expectation, and errors that do not name the cause. The exit status is 1 if
there are any. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.control.control_api import Refused
from bench.control.fault_report import reasons
from bench.control.file_mutations import CORRUPT, FAILING, SPARE, Document, Mutated, Mutations, Places
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.history import OK, Answer
from bench.control.load import Load, Stream
from bench.control.models import MODELS, SOLO, Service, write_corrupt_version, write_failing_version, write_repository
from bench.gateway.bystanders import warning
from bench.ports import ports_in_a_row
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch
from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.reading.parsing import parse_fleet

_VERSIONS = 3
_SETTLE_SECONDS = 90.0
#: Seconds without a change before a file counts as reconciled.
_CALM_SECONDS = 1.0
_FREE_PORTS = 5


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Outcome:
    """One file and its outcome."""

    kind: str
    taken: bool
    seconds: float
    #: The start of a rejection's message.
    said: str = ""
    #: What is wrong afterwards; "": nothing.
    wrong: str = ""


def make_places(directory: Path) -> Places:
    """The repositories of a run: the served one, a copy, one without models, one without the served versions."""
    repository = write_repository(directory / "models", _VERSIONS, Service(2.0, 0.25))
    write_corrupt_version(repository, SOLO, CORRUPT)
    write_failing_version(repository, SOLO, FAILING)
    shutil.copytree(repository / SOLO, repository / SPARE)
    config = repository / SPARE / "config.pbtxt"
    config.write_text(config.read_text().replace(f'name: "{SOLO}"', f'name: "{SPARE}"'))
    shutil.copytree(repository, directory / "copy")
    other = directory / "other"
    shutil.copytree(repository, other)
    for model in MODELS:
        for version in range(1, _VERSIONS + 1):
            (other / model / str(version)).rename(other / model / str(version + 20))
    (directory / "hollow").mkdir()
    names = (repository, directory / "copy", directory / "hollow", other)
    return Places(*map(str, names), free_port=ports_in_a_row(_FREE_PORTS))


class Applying:
    """Applies files to one fleet and waits until each is reconciled."""

    def __init__(self, fleet: SupervisedFleet, mutations: Mutations) -> None:
        self._fleet = fleet
        self._mutations = mutations
        self._applied: Document = yaml.safe_load(fleet.text)
        #: An aborted rollout has left a pool that its file retires: the next file retires it, too, and is asked again.
        self._keeps_pool = False

    def one(self) -> Outcome:
        mutated = self._mutations.next(self._applied)
        began, rollouts = time.monotonic(), len(self._fleet.api.rollouts())
        said, taken = self._apply(mutated)
        wrong = self._unexpected(mutated, taken, said)
        if taken:
            self._applied = yaml.safe_load(mutated.text)
            wrong = wrong or self._carried_out(mutated, rollouts)
            self._keeps_pool = mutated.aborts and mutated.agrees
            if mutated.aborts:
                # An operator would remove a version that cannot be served; the served one is still there.
                self._applied["models"][SOLO]["version"] = self._fleet.api.versions()[SOLO]
        return Outcome(mutated.kind, taken, time.monotonic() - began, said, wrong)

    def _apply(self, mutated: Mutated) -> tuple[str, bool]:
        """The message of the last rejection, and whether the file was applied."""
        api, directory = self._fleet.api, str(self._fleet.file.parent)
        try:
            api.apply(mutated.text, directory)
            return "", True
        except Refused as refused:
            keeps = self._keeps_pool and not mutated.refused and '"code":"not_agreed"' in refused.said
            if not mutated.agrees and not keeps:
                return refused.said, False
        try:
            api.apply(mutated.text, directory, retire=True)
            return "", True
        except Refused as refused:
            return refused.said, False

    def _unexpected(self, mutated: Mutated, taken: bool, said: str) -> str:
        if taken:
            return f"taken, expected a refusal that names {mutated.refused}" if mutated.refused else ""
        if not mutated.refused:
            return f"refused, expected to be taken: {said}"
        missing = [word for word in mutated.refused.split() if word not in said]
        return f"the refusal does not name {', '.join(missing)}: {said}" if missing else ""

    def _carried_out(self, mutated: Mutated, before: int) -> str:
        """Wait until the fleet matches the file and is quiet; return what is wrong. ``before``: rollouts."""
        ends = time.monotonic() + _SETTLE_SECONDS
        calm_since = time.monotonic()
        aborted: list[dict[str, Any]] = []
        while time.monotonic() - calm_since < _CALM_SECONDS:
            aborted = [each for each in self._fleet.api.rollouts()[before:] if each["state"] == "aborted"]
            trouble = self._trouble(self._fleet.api.status(), mutated)
            if mutated.aborts and not aborted:
                trouble = "nothing was aborted"
            if trouble:
                calm_since = time.monotonic()
            if time.monotonic() > ends:
                return f"not carried out within {_SETTLE_SECONDS:.0f} s: {trouble}"
            time.sleep(0.1)
        if aborted and not mutated.aborts:
            return f"aborted: {aborted[0]['reason']}"
        return ""

    def _trouble(self, status: dict[str, Any], mutated: Mutated) -> str:
        """What is not reconciled yet; "": nothing."""
        if status["rollouts"]:
            return f"rollout {status['rollouts'][0]['identity']} is {status['rollouts'][0]['state']}"
        workers = {worker["name"]: worker for worker in status["workers"]}
        file = yaml.safe_dump(self._applied)
        specs = processes(parse_fleet(file, "fleet.yaml", self._fleet.file.parent), self._fleet.file.parent)
        for name, spec in specs.items():
            if tuple(self._fleet.command_line(name)[-len(spec.arguments) :]) != spec.arguments:
                return f"{name} does not run as the file says"
        wanted = {name for name, spec in specs.items() if spec.role == "worker"}
        if missing := wanted - workers.keys():
            return f"worker {min(missing)} is not there"
        leaving = [name for name, worker in workers.items() if worker["draining"]]
        # A pool stays if the rollout that should have moved its models was aborted.
        surplus = [] if mutated.aborts else sorted(workers.keys() - wanted)
        if leaving or surplus:
            return f"worker {(leaving or surplus)[0]} is still there"
        served = {model["name"]: str(model["version"]) for model in status["models"] if model["version"]}
        asked = {name: str(model["version"]) for name, model in self._applied["models"].items()}
        if mutated.aborts:
            asked[SOLO] = served.get(SOLO, "")
        return "" if served == asked else f"served: {served}"


def report(outcomes: Sequence[Outcome], history: Sequence[Answer]) -> list[str]:
    """The lines of the report: the outcome of each kind, and everything that is wrong."""
    counts = Counter((outcome.kind, "taken" if outcome.taken else "refused") for outcome in outcomes)
    lines = [f"{count:4d}  {word:8}{kind}" for (kind, word), count in sorted(counts.items())]
    failed = [answer for answer in history if answer.outcome != OK]
    taken = sum(outcome.taken for outcome in outcomes)
    lines.append(f"files: {len(outcomes)}, taken {taken}, refused {len(outcomes) - taken}")
    lines.append(f"requests: {len(history)}, failed: {len(failed)}")
    lines += [f"  failed {count:6d}  {reason}" for reason, count in reasons(failed).most_common(10)]
    lines += [f"WRONG {outcome.kind}: {outcome.wrong}" for outcome in outcomes if outcome.wrong]
    return lines


def run(given: argparse.Namespace, directory: Path) -> int:
    places = make_places(directory)
    shape = Shape(workers=2, gateways=1, controllers=1)
    outcomes: list[Outcome] = []
    with SupervisedFleet(directory / "fleet", Path(places.repository), shape) as fleet:
        applying = Applying(fleet, Mutations(given.seed, places))
        streams = [Stream("http-1", rate=0.8 * given.rate), Stream("grpc-1", rate=0.2 * given.rate, transport="grpc")]
        load = Load(directory / "history", fleet.gateways, streams)
        with load:
            time.sleep(_CALM_SECONDS)
            for number in range(given.files):
                outcome = applying.one()
                outcomes.append(outcome)
                word = "taken" if outcome.taken else "refused"
                say(f"{number + 1:3d} {outcome.seconds:5.1f} s  {word:8}{outcome.kind}  {outcome.wrong}")
        history = load.history()
        if given.explain:
            for outcome in outcomes:
                if outcome.said:
                    print(f"{outcome.kind}: {outcome.said}")
    print("\n".join(report(outcomes, history)))
    settings = {name: value for name, value in vars(given).items() if not isinstance(value, Path)}
    failed = sum(answer.outcome != OK for answer in history)
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    document = {
        "settings": settings,
        "machine": describe(),
        "requests": len(history),
        "failed": failed,
        "files": [asdict(outcome) for outcome in outcomes],
    }
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "control-applies.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path}")
    return 1 if failed or wrong else 0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control.applies", description=__doc__)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("--explain", action="store_true", help="print what every refusal said")
    parser.add_argument("--keep", type=Path, help="directory for logs and histories; else they are removed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(words)


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    if given.keep is not None:
        return run(given, given.keep.resolve())
    with scratch("applies") as directory:
        return run(given, directory)


if __name__ == "__main__":
    sys.exit(main())
