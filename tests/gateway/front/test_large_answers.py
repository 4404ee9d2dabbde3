"""Answers that are passed on in pieces carry what the request asked for, and nothing that is not the caller's."""

from __future__ import annotations

from typing import Any, cast

import pytest
from offline import Caller, add_members, only_request
from tritonclient.grpc import service_pb2

from isochrone.gateway.caller_requests import STREAM_BYTES, UpstreamAttempt
from isochrone.gateway.fleet.commitment import ANY_EPOCH, EPOCH_HEADER, Commitment
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.front.grpc_requests import returned_block
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.headers.orca import ORCA_BINARY_HEADER
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Buffer, Head, Headers
from isochrone.wire.http2.hpack import Decoder

SERVES = {"m": {"1": "d1"}}
CURRENT_EPOCH = (EPOCH_HEADER, ANY_EPOCH)
#: In two pieces: more than is kept to be sent in one.
PIECE = bytes(STREAM_BYTES)


class Connections:
    def send(self, head: bytes, body: Any, receiver: Any) -> Connections:
        return self

    def open_whole(self, block: bytes, payload: Buffer, receiver: Any) -> Connections:
        return self

    def release(self, sent: Any) -> None: ...

    def cancel(self) -> None: ...


class SlowCaller(Caller):
    """Takes an answer in pieces."""

    local_done = False
    trailers: Headers = ()

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def write(self, pieces: list[Buffer]) -> None:
        self.text += b"".join(map(bytes, pieces))

    def end(self) -> None: ...

    def send_headers(self, block: bytes, is_last: bool) -> None:
        self.headers = tuple(Decoder(4096).decode(block))

    def send_data(self, data: Buffer) -> None:
        self.text += bytes(data)

    def end_with_trailers(self, block: bytes) -> None:
        self.trailers = tuple(Decoder(4096).decode(block))


def asked(head: Head, body: bytes) -> tuple[SlowCaller, UpstreamAttempt]:
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    add_members(gateway.fleet, SERVES)
    gateway.fleet.lead()
    gateway.fleet.commit(7, {"m": Commitment(7, "1", SERVES["m"])})
    gateway.fleet.members["a:1"].connections = Connections()  # type: ignore[assignment]
    caller = SlowCaller(head, body)
    GatewayApplication(gateway).route(head).handle(cast(Any, caller))
    (attempt,) = only_request(gateway).attempts
    assert isinstance(attempt, UpstreamAttempt)
    return caller, attempt


def test_http() -> None:
    head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), CURRENT_EPOCH, (b"x-isochrone-timing", b"1")))
    caller, attempt = asked(head, b"{}")
    worker = ((b"content-type", b"application/octet-stream"), (b"server-timing", b"compute;dur=1.0"))
    attempt.head(200, (*worker, (b"inference-header-content-length", b"2")))
    attempt.data(PIECE)
    attempt.data(PIECE)
    attempt.complete(())
    assert (EPOCH_HEADER, b"7") in caller.headers
    assert b"gateway" in dict(caller.headers)[b"server-timing"]
    assert len(caller.text) == 2 * len(PIECE)


@pytest.mark.interpreted
def test_grpc() -> None:
    fields = ((b"content-type", b"application/grpc"), CURRENT_EPOCH)
    head = Head(b"POST", b"/inference.GRPCInferenceService/ModelInfer", fields)
    head.is_http2 = head.is_grpc = True
    payload = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    caller, attempt = asked(head, b"\0" + len(payload).to_bytes(4, "big") + payload)
    attempt.head(200, ((b"content-type", b"application/grpc"),))
    attempt.data(PIECE)
    attempt.data(PIECE)
    attempt.complete(((b"grpc-status", b"0"),))
    assert caller.trailers == ((b"grpc-status", b"0"), (EPOCH_HEADER, b"7"))


def test_the_mark_of_an_unprocessed_request_is_for_the_gateway_alone() -> None:
    fields = ((b"grpc-status", b"14"), (UNPROCESSED_HEADER, b"1"), (ORCA_BINARY_HEADER, b"CgA"))
    for keeps in (False, True):
        kept = dict(Decoder(4096).decode(returned_block(0, fields, keep_load=keeps)))
        assert UNPROCESSED_HEADER not in kept
        assert (ORCA_BINARY_HEADER in kept) is keeps
