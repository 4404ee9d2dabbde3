"""The measured scenarios: models, numbers in flight, transports, and the request of each server."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.worker.models import IDENTITY_BATCHED, IDENTITY_WIDTH, MLP_LARGE, MLP_SMALL
from bench.worker.payloads import HttpRequest, grpc_infer, http_infer
from bench.worker.peers import Peer

IN_FLIGHT = (1, 32, 256)
TRANSPORTS = ("http", "grpc")


@dataclass(frozen=True)
class Scenario:
    """One model with one input."""

    name: str
    model: str
    shape: tuple[int, ...]

    @property
    def tensor_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))

    def tensor(self) -> np.ndarray:
        """The same input for every server."""
        return np.random.default_rng(7).standard_normal(self.shape, dtype=np.float32)


IDENTITY_64 = Scenario("identity_64", "identity", (IDENTITY_WIDTH,))
IDENTITY_1MB = Scenario("identity_1mb", "identity_1mb", (1 << 18,))
SMALL = Scenario("mlp_small", MLP_SMALL.name, (1, MLP_SMALL.width))
LARGE = Scenario("mlp_large", MLP_LARGE.name, (1, MLP_LARGE.width))
SCENARIOS = {scenario.name: scenario for scenario in (IDENTITY_64, IDENTITY_1MB, SMALL, LARGE)}


@dataclass(frozen=True)
class Cell:
    """One figure of the table: a scenario over a transport at a number in flight."""

    scenario: Scenario
    transport: str
    in_flight: int

    @property
    def name(self) -> str:
        return f"{self.scenario.name} {self.transport} ×{self.in_flight}"


def cells(scenarios: Sequence[str], in_flight: Sequence[int] = IN_FLIGHT) -> list[Cell]:
    """Every cell of the scenarios named."""
    return [
        Cell(SCENARIOS[name], transport, number)
        for name in scenarios
        for transport in TRANSPORTS
        for number in in_flight
    ]


def variants(peer: Peer, cell: Cell) -> list[Scenario]:
    """The scenario as this server can serve it: none, one, or two of which the better one counts.

    Triton's python backend pays its hop between processes once per batch when it may batch: its identity is
    measured both ways.
    """
    scenario = cell.scenario
    if scenario.model not in peer.models:
        return []
    if cell.transport == "grpc":
        if peer.grpc_address is None:
            return []
    elif peer.http_url is None or (peer.identity is not None and scenario is not IDENTITY_64):
        return []
    if scenario is IDENTITY_64 and peer.name == "triton":
        return [scenario, Scenario(scenario.name, IDENTITY_BATCHED, (1, IDENTITY_WIDTH))]
    return [scenario]


def http_request(peer: Peer, scenario: Scenario) -> HttpRequest:
    """The request in the server's own spelling: binary tensors where it knows them."""
    if peer.identity is not None:
        return peer.identity
    return http_infer(scenario.model, scenario.shape, scenario.tensor().tobytes())


def grpc_message(scenario: Scenario) -> bytes:
    """The call's body."""
    return grpc_infer(scenario.model, scenario.shape, scenario.tensor().tobytes())
