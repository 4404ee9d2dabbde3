"""The alternating run: every server's figure for a cell is taken within seconds of every other's, round after round.

The speed of a shared machine drifts: figures taken an hour apart would compare two machines. No server is measured
while another one gets requests.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.worker.bare_onnxruntime import rows_per_second, session
from bench.worker.load import Figure, LoadFailed, grpc_load, grpc_one_at_a_time, grpc_rate, http_load
from bench.worker.models import MAX_BATCH, MLP_LARGE
from bench.worker.peers import Peer, PeerUnavailable
from bench.worker.peers.process import scratch
from bench.worker.scenarios import Cell, Scenario, variants
from bench.worker.servers import QUIET_SHARE, Stage, idle_share, starters
from bench.worker.verification import WrongAnswer, verify

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    """One server's figure for one cell in one round; `model` distinguishes variants of a scenario."""

    server: str
    model: str
    cell: Cell
    round_number: int
    figure: Figure | None
    problem: str = ""


@dataclass
class Results:
    """Everything a run found."""

    samples: list[Sample] = field(default_factory=list)
    #: batch size → rows per second of bare onnxruntime (large perceptron), one entry per round.
    bare: dict[int, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    verified: dict[str, list[str]] = field(default_factory=dict)
    idle_share: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Alternation:
    """One run. `requests_per_second` remembers each cell's last rate, from which h2load's count is chosen."""

    def __init__(
        self,
        servers: list[str],
        cells: list[Cell],
        onnx_files: Mapping[str, Path],
        rounds: int,
        seconds: float,
        say: Say,
    ) -> None:
        self._names = servers
        self._cells = cells
        self._onnx_files = onnx_files
        self._rounds = rounds
        self._seconds = seconds
        self._say = say
        self._rates: dict[tuple[str, str, Cell], float] = {}
        self.results = Results()

    def run(self) -> Results:
        started = time.monotonic()
        results = self.results
        with scratch("bench-worker") as directory, Stage(starters(self._onnx_files)) as stage:
            restless = self._prepare(stage)
            quiet = [name for name in results.versions if name not in restless]
            large = session(self._onnx_files[MLP_LARGE.name])
            for number in range(self._rounds):
                self._say(f"round {number + 1} of {self._rounds}")
                for batch in (1, MAX_BATCH):
                    rate = rows_per_second(large, batch, self._seconds)
                    results.bare.setdefault(batch, []).append(rate)
                    self._say(f"  bare onnxruntime, {MLP_LARGE.name}, batch {batch}: {rate:,.0f} rows/s")
                for cell in self._cells:
                    # No server always goes first: one that follows a heavy cell may find a hot machine.
                    turn = number % len(quiet) if quiet else 0
                    for name in quiet[turn:] + quiet[:turn]:
                        self._measure(stage, name, cell, number, directory)
                for name in restless:
                    for cell in self._cells:
                        self._measure(stage, name, cell, number, directory)
                    stage.stop(name)
        results.seconds = time.monotonic() - started
        return results

    def _prepare(self, stage: Stage) -> list[str]:
        """Starts, verifies and listens to each server; returns those too busy when idle to be kept running."""
        results = self.results
        restless = []
        for name in self._names:
            try:
                peer = stage.peer(name)
                results.verified[name] = verify(peer, self._cells, self._onnx_files)
            except (PeerUnavailable, WrongAnswer) as error:
                if name == "isochrone":
                    raise
                results.unavailable[name] = str(error)
                self._say(f"{name}: left out: {error}")
                continue
            results.versions[name] = peer.version
            share = results.idle_share[name] = idle_share(peer)
            self._say(f"{name} {peer.version}: answers right ({', '.join(results.verified[name])}); idle {share:.1%}")
            if share > QUIET_SHARE:
                restless.append(name)
                stage.stop(name)
        return restless

    def _measure(self, stage: Stage, name: str, cell: Cell, number: int, directory: Path) -> None:
        try:
            peer = stage.peer(name)
        except PeerUnavailable as error:
            self.results.samples.append(Sample(name, cell.scenario.model, cell, number, None, str(error)))
            return
        for scenario in variants(peer, cell):
            figure, problem = None, ""
            try:
                figure = self._figure(peer, scenario, cell, directory)
                self._say(f"  {cell.name:24} {name:10} {scenario.model:17}{figure.requests_per_second:10,.0f} /s")
            except LoadFailed as error:
                problem = str(error)
                self._say(f"  {cell.name:24} {name:10} {scenario.model:17} failed: {problem}")
            self.results.samples.append(Sample(name, scenario.model, cell, number, figure, problem))

    def _figure(self, peer: Peer, scenario: Scenario, cell: Cell, directory: Path) -> Figure:
        if cell.transport == "http":
            return http_load(peer, scenario, cell.in_flight, self._seconds, directory)
        if cell.in_flight == 1:
            return grpc_one_at_a_time(peer, scenario, self._seconds)
        key = (peer.name, scenario.model, cell)
        if key not in self._rates:
            self._rates[key] = grpc_rate(peer, scenario, cell.in_flight, directory)
        requests = max(4 * cell.in_flight, int(self._rates[key] * self._seconds))
        figure = grpc_load(peer, scenario, cell.in_flight, requests, directory)
        self._rates[key] = figure.requests_per_second
        return figure
