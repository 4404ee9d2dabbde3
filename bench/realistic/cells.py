"""The cells: what is sent, over which transport, how many at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.realistic.messages import Message, grpc_message, http_message
from bench.realistic.models import BATCHED, COPIES, COSTS, SEQUENCES, SIZES, WIDTH

HTTP, GRPC = "http", "grpc"
#: Requests of one sequence.
CHAIN = 20
#: Sequences under way at most.
_CHAINS = 32
#: Larger tensors are sent by a generator that follows the server's windows, one at a time.
_SMALL_BYTES = 16_384


@dataclass(frozen=True)
class Cell:
    """One figure. ``kind`` says how its requests differ from plain ones."""

    kind: str
    model: str
    transport: str
    in_flight: int
    #: A busy process on every core that the servers use.
    neighbours: bool = False

    @property
    def name(self) -> str:
        beside = " +neighbours" if self.neighbours else ""
        return f"{self.model} {self.kind} {self.transport} ×{self.in_flight}{beside}"

    @property
    def width(self) -> int:
        return SIZES.get(self.model, WIDTH)

    @property
    def tensor_bytes(self) -> int:
        return 4 * self.width

    @property
    def is_large(self) -> bool:
        return self.tensor_bytes > _SMALL_BYTES

    @property
    def streams(self) -> bool:
        return self.kind == "stream"

    @property
    def chain(self) -> int:
        return CHAIN if self.kind == "sequences" else 0

    def messages(self) -> list[Message]:
        """The requests in rotation; of sequences, those of one after the other."""
        row = np.random.default_rng(7).standard_normal(self.width, dtype=np.float32)
        shape = (1, self.width)
        with_id = self.kind != "plain"
        if self.kind == "json":
            return [http_message(self.model, shape, [float(value) for value in row], with_id=True)]
        make: Callable[..., Message] = http_message if self.transport == HTTP else grpc_message
        if self.kind == "sequences":
            return [
                grpc_message(self.model, shape, row.tobytes(), with_id=True, sequence=(number, step == 0, step == last))
                for number in range(_CHAINS)
                for last in (CHAIN - 1,)
                for step in range(CHAIN)
            ]
        names = [f"copy_{number:02}" for number in range(COPIES)] if self.kind == "50 models" else [self.model]
        return [make(name, shape, row.tobytes(), with_id=with_id) for name in names]


def cells(in_flight: Sequence[int] = (1, 8, 32, 256)) -> Iterator[Cell]:
    """The published table."""
    few = [number for number in in_flight if number <= 32]
    for transport in (HTTP, GRPC):
        for number in in_flight:
            yield Cell("plain", "small", transport, number)
        # With and without batching one after the other: they are compared.
        for model in COSTS:
            for number in in_flight if model == "small" else few:
                yield Cell("ids", model, transport, number)
                if number in few:
                    yield Cell("ids", model + BATCHED, transport, number)
        for number in (each for each in in_flight if each in (1, 32)):
            yield Cell("50 models", "copy", transport, number)
        for model in SIZES:
            yield Cell("ids", model, transport, 1)
            if transport == HTTP:
                yield Cell("ids", model, transport, 8)
    for number in (each for each in in_flight if each in (1, 32)):
        yield Cell("json", "small", HTTP, number)
        yield Cell("sequences", SEQUENCES, GRPC, number)
        yield Cell("stream", "small", GRPC, number)
    for transport in (HTTP, GRPC):
        for model in ("small", "small" + BATCHED, "medium"):
            yield Cell("ids", model, transport, 32, neighbours=True)
