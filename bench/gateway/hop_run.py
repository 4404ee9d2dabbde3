"""The alternating run over one upstream: direct, then through each proxy, cell by cell, round by round.

Every figure comes with the CPU seconds of proxy, upstream and client over the same time, so that a reader sees which of
them was the bottleneck. Must never measure a proxy while another one gets requests.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from bench.gateway.bystanders import machine_cpu_seconds
from bench.gateway.hop_cells import DIRECT, HopCell, Results, Sample
from bench.gateway.placement import Placement, move, stay
from bench.gateway.proxies.upstream import Upstream
from bench.ports import free_ports
from bench.worker.load import Figure, LoadFailed, grpc_load, grpc_one_at_a_time, grpc_rate, http_load
from bench.worker.models import IDENTITY_MODELS
from bench.worker.peers import Peer, PeerUnavailable
from bench.worker.peers.process import HOST, REPOSITORY_ROOT, answers, running, scratch
from bench.worker.verification import WrongAnswer, verify

Say = Callable[[str], None]
Start = Callable[[Sequence[Upstream]], AbstractContextManager[Peer]]


@contextmanager
def canned_upstream() -> Iterator[Peer]:
    """The server behind every hop; answers at once with constant bytes."""
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}"
    with scratch("canned") as directory:
        log = directory / "canned.log"
        command: list[str | Path] = [sys.executable, "-m", "bench.gateway.canned_upstream", str(port)]
        # The module is found from the repository's root, wherever the log lies.
        environment = {"PYTHONPATH": str(REPOSITORY_ROOT)}
        ready = lambda: answers(f"{url}/v2/health/ready")  # noqa: E731
        with running("canned upstream", command, ready, log=log, environment=environment) as pid:
            yield Peer(DIRECT, "", pid, log, IDENTITY_MODELS, http_url=url, grpc_address=f"{HOST}:{port}")


def _client_cpu() -> float:
    """Of this process (the gRPC probe) and of the generators that have ended (wrk, h2load)."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class HopRun:
    """One run. A proxy that does not start is left out, with the reason."""

    def __init__(
        self,
        starters: Mapping[str, Start],
        cells: Sequence[HopCell],
        placements: Mapping[str, Placement],
        rounds: int,
        seconds: float,
        say: Say,
    ) -> None:
        self._starters = starters
        self._cells = cells
        self._placements = placements
        self._rounds = rounds
        self._seconds = seconds
        self._say = say
        self._rates: dict[tuple[str, HopCell], float] = {}
        self.results = Results()

    def run(self) -> Results:
        started = time.monotonic()
        with scratch("bench-hop") as directory, ExitStack() as stack:
            upstream = stack.enter_context(canned_upstream())
            port = int((upstream.grpc_address or "").rpartition(":")[2])
            contenders = self._start(stack, upstream, Upstream(port, port))
            for number in range(self._rounds):
                self._say(f"round {number + 1} of {self._rounds}")
                for cell in self._cells:
                    # No contender always goes first.
                    turn = number % len(contenders)
                    for peer in contenders[turn:] + contenders[:turn]:
                        self._measure(peer, upstream, cell, number, directory)
        self.results.seconds = time.monotonic() - started
        return self.results

    def _start(self, stack: ExitStack, upstream: Peer, address: Upstream) -> list[Peer]:
        cells = [cell.cell for cell in self._cells]
        self.results.verified[DIRECT] = verify(upstream, cells, {})
        contenders = [upstream]
        for name, start in self._starters.items():
            try:
                peer = stack.enter_context(start([address]))
                self.results.verified[name] = verify(peer, cells, {})
            except (PeerUnavailable, WrongAnswer) as error:
                self.results.unavailable[name] = str(error)
                self._say(f"{name}: left out: {error}")
                continue
            self.results.versions[name] = peer.version
            self._say(f"{name} {peer.version}: answers right ({', '.join(self.results.verified[name])})")
            contenders.append(peer)
        return contenders

    def _measure(self, peer: Peer, upstream: Peer, cell: HopCell, number: int, directory: Path) -> None:
        placement = self._placements[cell.placement]
        move(upstream.pid, placement.upstream)
        if peer is not upstream:
            move(peer.pid, placement.proxy)
        stay(placement.client)
        try:
            # The count of requests is chosen before anything is counted: its trial runs are not part of the figure.
            requests = self._requests(peer, cell, directory)
            machine, started = machine_cpu_seconds(), time.monotonic()
            proxy, server, client = peer.cpu_seconds(), upstream.cpu_seconds(), _client_cpu()
            figure = self._figure(peer, cell, requests, directory)
            proxy = peer.cpu_seconds() - proxy if peer is not upstream else 0.0
            server, client = upstream.cpu_seconds() - server, _client_cpu() - client
            others = machine_cpu_seconds() - machine - proxy - server - client
            elapsed = time.monotonic() - started
            sample = Sample(
                contender=peer.name,
                cell=cell,
                round_number=number,
                figure=figure,
                proxy_cpu=proxy,
                upstream_cpu=server,
                client_cpu=client,
                others_share=max(0.0, others / elapsed),
            )
            self._say(f"  {cell.name:20} {peer.name:10}{figure.requests_per_second:10,.0f} /s")
        except LoadFailed as error:
            sample = Sample(peer.name, cell, number, None, problem=str(error))
            self._say(f"  {cell.name:20} {peer.name:10} failed: {error}")
        self.results.samples.append(sample)

    def _requests(self, peer: Peer, cell: HopCell, directory: Path) -> int:
        """How many h2load is to send; 0 where a duration serves."""
        if cell.cell.transport == "http" or cell.cell.in_flight == 1:
            return 0
        key = (peer.name, cell)
        if key not in self._rates:
            self._rates[key] = grpc_rate(peer, cell.cell.scenario, cell.cell.in_flight, directory)
        return max(4 * cell.cell.in_flight, int(self._rates[key] * self._seconds))

    def _figure(self, peer: Peer, cell: HopCell, requests: int, directory: Path) -> Figure:
        scenario, in_flight = cell.cell.scenario, cell.cell.in_flight
        if requests:
            figure = grpc_load(peer, scenario, in_flight, requests, directory)
            self._rates[peer.name, cell] = figure.requests_per_second
            return figure
        if cell.cell.transport == "http":
            return http_load(peer, scenario, in_flight, self._seconds, directory)
        return grpc_one_at_a_time(peer, scenario, self._seconds)
