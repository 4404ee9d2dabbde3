"""Replays sampled requests to both versions and compares the outputs, before the new version is visible.

``outputs`` decides what differs; this module sends the requests to one worker that has both versions. It sends them one
after the other, so that they add little load to live traffic.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from isochrone.control.evaluation.outputs import Difference, compare_outputs, read_grpc, read_http
from isochrone.control.state.process_records import NO_FIELDS, WorkerRecord
from isochrone.control.state.rollout_records import CompareRule
from isochrone.errors import ConnectionLost, DeadlineExceeded, InvalidArgument, IsochroneError, Unavailable
from isochrone.gateway.evaluation.sampling import GRPC, GRPC_PATH, SHARED_MEMORY, Sample
from isochrone.protocol.compression.codec import decompress
from isochrone.protocol.grpc.routing_fields import version_field
from isochrone.wire.connect import connect_http1, connect_http2
from isochrone.wire.http1.client import request_head
from isochrone.wire.http2.client import Http2ClientConnection
from isochrone.wire.http2.grpc_client import unary
from isochrone.wire.receiver import Gathering
from isochrone.wire.tls.process_tls import process_tls, refuses

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

#: Seconds that a replayed request may take.
_PATIENCE = 30.0
#: Bytes that an answer may have, and a decompressed request.
_MAX_ANSWER = 256 << 20
_MAX_REQUEST = 64 << 20
#: Differences kept as examples.
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison."""

    #: Requests replayed.
    total: int
    #: Requests that the new version answered differently, twice.
    different: int
    #: Requests that the old version itself answers differently each time, so that they show nothing.
    unsteady: int
    worst: Difference | None
    examples: tuple[Difference, ...]

    def passes(self, rule: CompareRule) -> bool:
        return self.different <= rule.allowed * self.total

    def __str__(self) -> str:
        text = f"{self.different} of {self.total} requests answered differently"
        if self.unsteady:
            text += f", {self.unsteady} not comparable (the old version differs from itself)"
        return f"{text}; worst: {self.worst}" if self.worst is not None else text


@dataclass(frozen=True, slots=True)
class _Rejected:
    """An error answer. Its message may name the version, so only the status is compared."""

    status: str
    message: str


async def compare_versions(
    samples: Sequence[Sample],
    worker: WorkerRecord,
    model: str,
    old: str,
    new: str,
    rule: CompareRule,
    own_fields: Mapping[str, str] = NO_FIELDS,
) -> Comparison:
    """Replay the samples to one worker that serves both versions. Raise ``Unavailable`` if it cannot be reached, or
    must not be called by the fleet's TLS.

    ``own_fields``: headers that prove to a worker of the fleet that a controller calls."""
    if worker.kind == "isochrone" and (reason := refuses(worker.tls)):
        raise Unavailable(f"worker {worker.name}: {reason}")
    samples = [sample for sample in samples if _may_be_replayed(sample)]
    differences: list[Difference] = []
    unsteady = 0
    async with AsyncExitStack() as stack:
        channel: Http2ClientConnection | None = None
        if any(sample.protocol == GRPC for sample in samples):
            tls, server_name = _tls_of(worker, http2=True)
            channel = await connect_http2(worker.host, worker.grpc_port, tls=tls, server_name=server_name)
            stack.callback(channel.close)
        own = own_fields if worker.is_of_fleet else NO_FIELDS
        replayer = _Replayer(worker, model, channel, own)
        for sample in samples:
            before = await replayer.send(sample, old)
            if _differ(before, await replayer.send(sample, new), rule) is None:
                continue
            # Once is not enough: a busy worker may reject a request, and a model may answer at random.
            difference = _differ(before, await replayer.send(sample, new), rule)
            if difference is None:
                continue
            if _differ(before, await replayer.send(sample, old), rule) is not None:
                unsteady += 1
            else:
                differences.append(difference)
    worst = max(differences, key=lambda difference: difference.excess, default=None)
    return Comparison(len(samples), len(differences), unsteady, worst, tuple(differences[:_EXAMPLES]))


def _tls_of(worker: WorkerRecord, *, http2: bool = False) -> tuple[ssl.SSLContext | None, str | None]:
    """For connections to a worker: the context, and the name in its certificate if that is not its host."""
    client = process_tls().client
    if not worker.tls or client is None:
        return None, None
    return client.to_server(http2=http2), client.server_name or None


def _may_be_replayed(sample: Sample) -> bool:
    """Not if its answer goes to shared memory. The gateway does not sample those, but it does not read compressed
    bodies."""
    encoding = sample.headers.get("content-encoding", "identity")
    if encoding == "identity":
        return SHARED_MEMORY not in sample.body
    try:
        return SHARED_MEMORY not in decompress(encoding.encode("latin-1"), sample.body, _MAX_REQUEST)
    except IsochroneError:
        # No server can read it either: both versions reject it.
        return False


def _differ(old: Tensors | _Rejected, new: Tensors | _Rejected, rule: CompareRule) -> Difference | None:
    if isinstance(old, _Rejected) and isinstance(new, _Rejected):
        if old.status == new.status:
            return None
        return Difference("", f"{new.status} ({new.message}), expected {old.status} ({old.message})")
    if isinstance(new, _Rejected):
        return Difference("", f"{new.status} ({new.message}), expected an answer")
    if isinstance(old, _Rejected):
        return Difference("", f"an answer, expected {old.status} ({old.message})")
    return compare_outputs(old, new, rule)


class _Replayer:
    """Sends requests for one model to one worker."""

    def __init__(
        self,
        worker: WorkerRecord,
        model: str,
        channel: Http2ClientConnection | None,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        self._fields = tuple((name.encode(), value.encode()) for name, value in own_fields.items())
        self._worker = worker
        # All connections have one context, which remembers the session.
        self._tls, self._server_name = _tls_of(worker)
        self._model = quote(model, safe="")
        self._channel = channel

    async def send(self, sample: Sample, version: str) -> Tensors | _Rejected:
        if sample.protocol == GRPC:
            return await self._grpc(sample, version)
        return await self._http(sample, version)

    async def _http(self, sample: Sample, version: str) -> Tensors | _Rejected:
        worker = self._worker
        # One connection for each request: a connection that timed out in the middle of an answer cannot be reused.
        connection = await connect_http1(worker.host, worker.port, tls=self._tls, server_name=self._server_name)
        with closing(connection):
            target = f"/v2/models/{self._model}/versions/{quote(version, safe='')}{sample.path}"
            headers = (
                (b"host", worker.address.encode()),
                *self._fields,
                *((name.encode("latin-1"), value.encode("latin-1")) for name, value in sample.headers.items()),
            )
            receiver = Gathering(asyncio.get_running_loop(), _MAX_ANSWER)
            head = request_head(b"POST", target.encode("latin-1"), headers, len(sample.body))
            connection.send(head, (sample.body,), receiver)
            try:
                async with asyncio.timeout(_PATIENCE):
                    response = await receiver.future
            except TimeoutError:
                return _Rejected("no answer", f"within {_PATIENCE:g} s")
            except ConnectionLost:
                raise
            except IsochroneError as error:
                return _Rejected("an answer that cannot be read", error.message)
        if response.status != 200:
            return _Rejected(f"HTTP {response.status}", bytes(response.body[:200]).decode("utf-8", "replace"))
        length = response.get(b"inference-header-content-length") or b""
        try:
            return read_http(response.body, int(length) if length.isdigit() else -1)
        except InvalidArgument as error:
            return _Rejected("an answer that cannot be read", error.message)

    async def _grpc(self, sample: Sample, version: str) -> Tensors | _Rejected:
        channel = self._channel
        assert channel is not None
        # In protobuf the last occurrence of a field wins: the appended version replaces the caller's.
        message = sample.body + version_field(version)
        try:
            authority = self._worker.address.encode()
            answer, _ = await unary(channel, authority, GRPC_PATH, message, self._fields, _PATIENCE)
        except ConnectionLost:
            raise
        except DeadlineExceeded as error:
            return _Rejected("no answer", error.message)
        except IsochroneError as error:
            return _Rejected(f"gRPC status {error.grpc_status}", error.message[:200])
        try:
            return read_grpc(answer)
        except InvalidArgument as error:
            return _Rejected("an answer that cannot be read", error.message)
