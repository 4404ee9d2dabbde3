"""From a workload to what a generator process sends with: a sender, and for each kind its encoded requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isochrone.bench.sending import grpc_sender, http_requests
from isochrone.bench.sending.grpc_sender import GrpcSender
from isochrone.bench.sending.http_sender import HttpSender
from isochrone.bench.sending.sender import Sender
from isochrone.bench.workload.inputs import calls_of, text_objects
from isochrone.bench.workload.mix import Kind, Sequences
from isochrone.bench.workload.spec import Workload
from isochrone.client.address import Address, Certificates, parse_address
from isochrone.client.answers import TensorMetadata
from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError, FlagError

#: Open loop over HTTP/1.1: connections before the first request. Others are made when they are needed.
_FIRST_CONNECTIONS = 16
#: Calls of gRPC that share a connection, unless the workload says how many connections.
_CALLS_PER_CONNECTION = 32
#: Files of a generator process beside its connections: pipes, timers, modules while they are read.
_OTHER_FILES = 32

#: The parameters of a request in a sequence → the request.
WithParameters = Callable[[int, Mapping[str, Any]], Any]


class PreparedKind:
    """The requests of one kind, sent in turn; those of sequences are encoded one by one."""

    __slots__ = ("_next", "_samples", "_with_parameters", "deadline_ns", "is_stream", "sequences")

    def __init__(
        self, kind: Kind, samples: Sequence[Any], with_parameters: WithParameters, sequences: Sequences | None
    ) -> None:
        self._samples = samples
        self._with_parameters = with_parameters
        self._next = -1
        self.deadline_ns = kind.deadline_ns
        self.is_stream = kind.stream
        self.sequences = sequences

    def take(self) -> Any:
        """The next request."""
        self._next = (self._next + 1) % len(self._samples)
        return self._samples[self._next]

    def take_in_sequence(self, sequence_id: int, position: int) -> Any:
        """The next request, as number ``position`` of a sequence."""
        assert self.sequences is not None
        self._next = (self._next + 1) % len(self._samples)
        return self._with_parameters(self._next, self.sequences.parameters(sequence_id, position))


def address_of(workload: Workload) -> Address:
    """Raises ``FlagError``. OpenAI's base URL may end in /v1."""
    url = workload.target
    try:
        return parse_address(url.rstrip("/").removesuffix("/v1") if workload.protocol == "openai" else url)
    except ConfigError as error:
        raise FlagError("URL", error.expected, error.given) from None


def certificates_of(workload: Workload) -> Certificates:
    return Certificates(*(Path(path) if path else None for path in (workload.ca, workload.cert, workload.key)))


def check_certificates(workload: Workload) -> None:
    """Raises ``FlagError``: files that are not there, or that the URL has no use for."""
    try:
        certificates_of(workload).check(address_of(workload))
    except FlagError:
        raise
    except ConfigError as error:
        flag = "URL" if error.key == "url" else ", ".join(f"--{name}" for name in error.key.split(", "))
        raise FlagError(flag, error.expected, error.given) from None


def prepare_kinds(
    workload: Workload, declared: Sequence[Sequence[TensorMetadata]], first_sequence: int
) -> list[PreparedKind]:
    """``declared``: the inputs of each kind's model. Raises ``ConfigError`` and ``InvalidArgument``."""
    address = address_of(workload)
    return [
        _prepare(workload, kind, inputs, address, first_sequence + (number << 32))
        for number, (kind, inputs) in enumerate(zip(workload.kinds, declared, strict=True))
    ]


def make_sender(workload: Workload, index: int, count: int) -> Sender[Any]:
    """The sender of one of ``count`` generator processes."""
    address = address_of(workload)
    is_grpc = workload.protocol == "grpc"
    tls = certificates_of(workload).context(http2=is_grpc) if address.is_secure else None
    most = most_connections(workload, index, count)
    if is_grpc:
        return GrpcSender(address, tls, workload.part_in_flight(index, count), most)
    return HttpSender(address, tls, most, most if not workload.is_open_loop else _FIRST_CONNECTIONS)


def most_connections(workload: Workload, index: int, count: int) -> int:
    """Of one of ``count`` generator processes."""
    limit = workload.part_in_flight(index, count)
    # At least one: a process without a connection could send nothing.
    given = max(1, workload.connections // count) if workload.connections else 0
    if workload.protocol == "grpc":
        return given or -(-limit // _CALLS_PER_CONNECTION)
    return min(limit, given) if given else limit


def check_open_files(connections: int, most_files: int, *, is_open_loop: bool) -> None:
    """Raises ``FlagError`` if one generator process cannot have so many connections."""
    if connections + _OTHER_FILES > most_files:
        flag = "--max-in-flight" if is_open_loop else "--concurrency"
        expected = (
            f"at most {max(0, most_files - _OTHER_FILES):,} connections of a generator process, whose hard limit of"
            f" open files is {most_files:,} (lower it, give --connections, or raise --processes or ulimit -Hn)"
        )
        raise FlagError(flag, expected, f"{connections:,} connections")


def _prepare(
    workload: Workload, kind: Kind, declared: Sequence[TensorMetadata], address: Address, first_sequence: int
) -> PreparedKind:
    headers = workload.headers
    if workload.protocol == "openai":
        return PreparedKind(kind, [http_requests.openai_request(kind, address, headers)], _no_sequences, None)
    if workload.protocol == "http" and kind.stream:
        samples = [http_requests.generate_request(each, kind, address, headers) for each in text_objects(kind)]
        return PreparedKind(kind, samples, _no_sequences, None)
    encode = grpc_sender.infer_request if workload.protocol == "grpc" else http_requests.infer_request
    calls = calls_of(kind, declared, headers, workload.seed)

    def with_parameters(number: int, parameters: Mapping[str, Any]) -> Any:
        call = calls[number]
        return encode(call._replace(parameters={**call.parameters, **parameters}), kind, address)

    most_idle_ns = round(kind.sequence_idle_ms * MILLISECOND)
    sequences = Sequences(kind.sequence, first_sequence, most_idle_ns) if kind.sequence else None
    return PreparedKind(kind, [encode(call, kind, address) for call in calls], with_parameters, sequences)


def _no_sequences(number: int, parameters: Mapping[str, Any]) -> Any:
    raise AssertionError("requests of this protocol belong to no sequence")
