"""``python -m bench.gpu.two_tower``: a two-tower recommender on one GPU behind the gateway, open loop.

``isochrone up`` runs a worker, gateways and a controller. Parts: *steady* (Poisson arrivals at ``--rate``), *search*
(the highest rate whose p99 stays within ``--limit-ms``, in short steps) and *rollout* (a strict rollout of version 2 in
the middle of a run). Latency counts from the instant at which a request was due. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench.control.control_api import ControlApi, Unreachable
from bench.gateway.placement import stay
from bench.gpu.budget import rounds_within, scaled
from bench.gpu.figures import ResultsFile, markdown
from bench.gpu.load.cores import split_cores
from bench.gpu.load.generators import GeneratorFailed, Generators, Job, fault, summary
from bench.gpu.models.repository import compute_alike, write_repository
from bench.gpu.models.specs import FULL, OVERLAP, TINY, TWO_TOWER
from bench.gpu.progress import say
from bench.gpu.raw.process import RawProcess
from bench.gpu.two_tower.open_figures import RateSearch, Requests
from bench.ports import ports_in_a_row
from bench.worker.peers.process import HOST, running, scratch

STEADY, SEARCH, ROLLOUT = "steady", "search", "rollout"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.two_tower", description=__doc__)
    parser.add_argument("--repository", type=Path, help="of bench.gpu.models; what is missing in it is made")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cells", default=f"{STEADY},{SEARCH},{ROLLOUT}")
    parser.add_argument("--rate", type=float, default=10_000.0, help="requests per second")
    parser.add_argument("--limit-ms", type=float, default=5.0, help="p99 that must be kept")
    parser.add_argument("--seconds", type=float, default=60.0, help="of steady and of rollout")
    parser.add_argument("--step-seconds", type=float, default=10.0, help="of a step of the search")
    parser.add_argument("--steps", type=int, default=8, help="of the search, at most")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--generators", type=int, default=6, help="processes")
    parser.add_argument("--connections", type=int, default=3, help="of each generator, over the gateways in turn")
    parser.add_argument("--server-cores", type=int, default=8, help="of worker, gateways and controller together")
    parser.add_argument("--load-timeout", type=float, default=180.0)
    parser.add_argument(
        "--limit", type=float, default=540.0, help="seconds from the start: shorter runs; none is begun later"
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    given.sizes = TINY if given.tiny else FULL
    given.parts = given.cells.split(",")
    if unknown := set(given.parts) - {STEADY, SEARCH, ROLLOUT}:
        parser.error(f"--cells: unknown {', '.join(sorted(unknown))}")
    return given


@contextmanager
def fleet(given: argparse.Namespace, directory: Path, repository: Path) -> Iterator[tuple[list[str], ControlApi]]:
    """The gateways' addresses and the control API; version 1 is served."""
    first = ports_in_a_row(2 * given.gateways + 1)
    gateways = [f"{HOST}:{first + number}" for number in range(given.gateways)]
    control = f"{HOST}:{first + 2 * given.gateways}"
    document = {
        "name": "two-tower",
        "repository": str(repository),
        "store": {"url": f"sqlite:{directory}/fleet.db"},
        "control": {"listen": control},
        "gateways": {"gw": {"listen": gateways[0], "count": given.gateways, "metrics_port": first + given.gateways}},
        "pools": {"pool": {"workers": 1, "device": "cpu" if given.device == "cpu" else "gpu"}},
        "models": {TWO_TOWER: {"version": 1, "rollout": {"cutover": "strict"}}},
    }
    (directory / "fleet.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    command = [sys.executable, "-m", "isochrone", "up", directory / "fleet.yaml", "--state", directory / "state"]

    def ready() -> bool:
        try:
            return all(
                httpx.get(f"http://{each}/v2/models/{TWO_TOWER}/ready", timeout=2, trust_env=False).status_code == 200
                for each in gateways
            )
        except httpx.TransportError:
            return False

    with running("isochrone up", command, ready, log=directory / "up.log", timeout_seconds=given.load_timeout):
        api = ControlApi([control])
        try:
            yield gateways, api
        finally:
            api.close()


class Bench:
    """A running fleet and its generators."""

    def __init__(
        self, given: argparse.Namespace, addresses: list[str], generators: Generators, job: Job, log: Path
    ) -> None:
        self._given, self._addresses, self._generators, self._job = given, addresses, generators, job
        self._log = log

    def job(self, rate: float, seconds: float) -> Job:
        return Job(**{**vars(self._job), "rate": rate, "seconds": seconds})

    def run(self, rate: float, seconds: float) -> tuple[dict[str, Any], Requests]:
        return self._figure(self._generators.run(self.job(rate, seconds)), rate)

    def _figure(self, outcomes: Any, rate: float) -> tuple[dict[str, Any], Requests]:
        requests = Requests.of(outcomes)
        figure = {**summary(outcomes), **requests.figure(), "rate": rate}
        return {**figure, "problem": fault(figure)}, requests

    def keeps(self, figure: dict[str, Any]) -> bool:
        return not figure["problem"] and figure["p99_us"] <= self._given.limit_ms * 1e3

    def search(self, results: ResultsFile, ends: float) -> RateSearch:
        search = RateSearch(self._given.rate, most_steps=self._given.steps)
        while (rate := search.next()) is not None and time.monotonic() + self._given.step_seconds < ends:
            figure, _ = self.run(rate, self._given.step_seconds)
            search.record(rate, self.keeps(figure))
            results.add(part=SEARCH, keeps=self.keeps(figure), **figure)
            say(f"search {rate:,.0f}/s: p99 {figure.get('p99_us', 0) / 1e3:.2f} ms {figure['problem']}")
        return search

    def rollout(self, api: ControlApi) -> dict[str, Any]:
        """Version 2 in the middle of a run."""
        seconds = self._given.seconds
        begun = self._generators.begin(self.job(self._given.rate, seconds))
        try:
            time.sleep(seconds * 0.4)
            identity = api.start_rollout({TWO_TOWER: "2"}, cutover="strict")
            record = api.wait(identity, timeout_seconds=max(20.0, seconds), poll_seconds=0.1)
        finally:
            outcomes = self._generators.finish(begun)
        figure, requests = self._figure(outcomes, self._given.rate)
        rollout = {"state": record["state"], "reason": record.get("reason", "")}
        held = [float(each) for each in _HELD.findall(self._log.read_text(errors="replace"))]
        return {**figure, "rollout": rollout, "held_ms": held, **requests.switch(begun[1], 1, 2)}


def fit(given: argparse.Namespace, left: float) -> None:
    """Fewer rounds, then shorter runs and steps, if ``--limit`` leaves no time for more."""
    planned = given.seconds * (ROLLOUT in given.parts) + given.steps * given.step_seconds * (SEARCH in given.parts)
    if STEADY in given.parts:
        given.rounds = rounds_within(left - planned, given.rounds, given.seconds)
        planned += given.rounds * given.seconds
    given.seconds = scaled(left, planned, given.seconds, least=10.0)
    given.step_seconds = scaled(left, planned, given.step_seconds, least=3.0)


def measure(
    given: argparse.Namespace, bench: Bench, api: ControlApi, results: ResultsFile, ends: float, left_out: set[str]
) -> bool:
    """Whether everything kept its promise. Adds the parts of which ``--limit`` left something out."""
    good = True
    fit(given, ends - time.monotonic())
    results.note(rounds=given.rounds, seconds=given.seconds, step_seconds=given.step_seconds)
    for number in range(given.rounds):
        if STEADY in given.parts and time.monotonic() + given.seconds >= ends:
            left_out.add(STEADY)
        elif STEADY in given.parts:
            figure, _ = bench.run(given.rate, given.seconds)
            results.add(part=STEADY, round=number, keeps=bench.keeps(figure), **figure)
            good &= bench.keeps(figure)
            say(f"steady: p99 {figure.get('p99_us', 0) / 1e3:.2f} ms {figure['problem']}")
    # The rollout goes before the search, which overloads the fleet on purpose; version 2 is served after it.
    if ROLLOUT in given.parts and time.monotonic() + given.seconds >= ends:
        left_out.add(ROLLOUT)
    elif ROLLOUT in given.parts:
        figure = results.add(part=ROLLOUT, **bench.rollout(api))
        good &= not figure["problem"] and bool(figure["switched"]) and not figure.get("violations")
    if SEARCH in given.parts:
        found = bench.search(results, ends)
        results.note(highest_rate=found.kept, tried=found.tried)
        if not found.tried:
            left_out.add(SEARCH)
    return good


def report(results: ResultsFile, limit_ms: float) -> str:
    rows = []
    for each in results.figures:
        milliseconds = [f"{each[key] / 1e3:.2f}" if each.get(key) is not None else "–" for key in _LATENCIES]
        count = f"{max(each['failed'], each['unanswered']):,}"
        busiest = f"{max(each['generator_cpu']):.0%}"
        rows.append((f"{each['part']} {each['rate']:,.0f}/s", f"{each['requests']:,}", count, *milliseconds, busiest))
    header = ("", "requests", "failed", "p50 ms", "p99 ms", "p99.9 ms", "generator late p99 ms", "busiest generator")
    lines = [markdown(header, rows), ""]
    for each in results.figures:
        if each["part"] == ROLLOUT:
            lines.append(f"rollout: {each['rollout']}; " + ", ".join(f"{key} {each.get(key)}" for key in _SWITCH))
        if each["problem"]:
            lines.append(f"{each['part']} {each['rate']:,.0f}/s: {each['problem']}")
    kept = [each["rate"] for each in results.figures if each.get("keeps")]
    lines.append(f"highest rate with p99 within {limit_ms:g} ms: {max(kept, default=0):,.0f}/s")
    return "\n".join(lines)


#: How long each gateway held requests in a strict switch.
_HELD = re.compile(r"switch over.*?held_ms\W+([0-9.]+)")
_LATENCIES = ("p50_us", "p99_us", "p999_us", "late_p99_us")
_SWITCH = (
    *("switched", "switch_at_s", "answers_old", "answers_new", "violations", "old_answers_received_after"),
    *("p99_ms_around_switch", "p99_ms_other_seconds_median", "p99_ms_other_seconds_worst", "held_ms"),
)


def main() -> int:
    given = arguments()
    ends = time.monotonic() + given.limit
    compute_alike(given.device)
    cores = sorted(os.sched_getaffinity(0))
    of_servers, of_generators = split_cores(cores, given.server_cores)
    left_out: set[str] = set()
    results = ResultsFile("gpu-two-tower", given.results, device=given.device, sizes=given.sizes.name)
    with scratch("gpu-two-tower") as directory:
        # A folder of its own: the fleet serves every model of its repository.
        repository = write_repository(
            (given.repository or directory) / "two-tower", given.device, given.sizes, [TWO_TOWER], [OVERLAP]
        )
        with RawProcess(repository, given.sizes, given.device, of_servers) as raw:
            references = {version: raw.reference(TWO_TOWER, version) for version in (1, 2)}
        stay(frozenset(of_servers))  # the fleet inherits it
        with fleet(given, directory, repository) as (addresses, api):
            stay(frozenset(cores))
            job = Job(TWO_TOWER, given.sizes, tuple(addresses), references, connections=given.connections)
            with Generators(min(given.generators, len(of_generators)), of_generators) as generators:
                bench = Bench(given, addresses, generators, job, directory / "up.log")
                try:
                    bench.run(min(given.rate, 500.0), 1.0)  # connections, routes and graphs are warm after it
                    good = measure(given, bench, api, results, ends, left_out)
                except (GeneratorFailed, Unreachable, TimeoutError) as error:
                    say(f"{error}\n{(directory / 'up.log').read_text(errors='replace')[-2000:]}")
                    good = False
    print(report(results, given.limit_ms))
    missing = [results.shortfall(part, limited=part in left_out, part=part) for part in given.parts]
    print("\n".join(filter(None, missing)))
    print(f"written: {results.path}")
    return 0 if good and not any(missing) else 1


if __name__ == "__main__":
    sys.exit(main())
