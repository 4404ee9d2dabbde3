"""gRPC for the blocking client, through the stock library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from isochrone.client.address import Address, Certificates
from isochrone.client.answers import ModelMetadata, Outputs
from isochrone.client.calls import NO_HEADERS, InferCall
from isochrone.client.grpc import codec
from isochrone.client.grpc.channel import OPTIONS, fields_of, texts
from isochrone.client.grpc.failures import grpc_failure, stream_failure
from isochrone.errors import IsochroneError


class GrpcTransport:
    """One channel, which threads share."""

    def __init__(self, address: Address, certificates: Certificates) -> None:
        self._place = str(address)
        self._channel = (
            grpc.secure_channel(
                address.authority, grpc.ssl_channel_credentials(*certificates.contents()), options=OPTIONS
            )
            if address.is_secure
            else grpc.insecure_channel(address.authority, options=OPTIONS)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def infer(self, call: InferCall, seconds: float | None) -> Outputs:
        request = codec.encode_infer(call)
        try:
            response = self._stub.ModelInfer(request, timeout=seconds, metadata=fields_of(call.headers))
        except grpc.RpcError as error:
            raise self._failure(error, call.id) from None
        return codec.decode_infer(response, self._place)

    def stream(self, call: InferCall, seconds: float | None) -> Iterator[Outputs]:
        requests = iter((codec.encode_infer(call),))
        responses = self._stub.ModelStreamInfer(requests, timeout=seconds, metadata=fields_of(call.headers))
        try:
            for response in responses:
                if response.error_message:
                    raise stream_failure(response.error_message, call.id)
                yield codec.decode_infer(response.infer_response, self._place)
        except grpc.RpcError as error:
            raise self._failure(error, call.id) from None
        finally:
            # A caller that stops early ends the model's work, too.
            responses.cancel()

    def is_ready(
        self, model: str, version: str, seconds: float | None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bool:
        fields = fields_of(headers)
        try:
            if model:
                request = service_pb2.ModelReadyRequest(name=model, version=version)
                return bool(self._stub.ModelReady(request, timeout=seconds, metadata=fields).ready)
            ready = self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=seconds, metadata=fields)
            return bool(ready.ready)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def metadata(self, model: str, version: str, seconds: float | None, headers: Mapping[str, str]) -> ModelMetadata:
        request = service_pb2.ModelMetadataRequest(name=model, version=version)
        try:
            return codec.decode_metadata(
                self._stub.ModelMetadata(request, timeout=seconds, metadata=fields_of(headers))
            )
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        self._channel.close()

    def _failure(self, error: Any, request_id: str = "") -> IsochroneError:
        trailers = texts(error.trailing_metadata())
        return grpc_failure(error.code().name, error.details() or "", trailers, self._place, request_id)
