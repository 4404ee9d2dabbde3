"""A server reached over gRPC, through the stock library. See ``target``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from isochrone.cli.requests.target import (
    NO_CREDENTIAL,
    Answer,
    Certificates,
    Question,
    RequestFailed,
    TensorDescription,
    no_tls,
    unreachable,
    untrusted,
)
from isochrone.client.scheme_hints import hint_of_tls, is_cut
from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.headers.timing import parse_server_timing
from isochrone.protocol.tensors.binary import from_binary, to_binary

#: The library's messages for a connection that ended before, during or right after the TLS handshake.
_TLS_FAILURES = ("handshake", "Unwrap failed", "Socket closed", "Connection reset", "Broken pipe")
#: Tensors often exceed the library's limit of 4 MiB.
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class GrpcTarget:
    """One channel. ``certificates``: over TLS; ``credential``: metadata of every call."""

    def __init__(
        self,
        host: str,
        port: int,
        patience: float,
        certificates: Certificates | None = None,
        credential: Mapping[str, str] = NO_CREDENTIAL,
    ) -> None:
        self._credential = tuple(credential.items())
        self._url = f"{'grpc' if certificates is None else 'grpcs'}://{host}:{port}"
        self._patience = patience
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._channel = (
            grpc.insecure_channel(address, options=_UNLIMITED)
            if certificates is None
            else grpc.secure_channel(address, _credentials(certificates), options=_UNLIMITED)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def inputs(self, model: str, version: str) -> list[TensorDescription]:
        request = service_pb2.ModelMetadataRequest(name=model, version=version)
        response = self._call(
            lambda: self._stub.ModelMetadata(request, timeout=self._patience, metadata=self._credential)
        )
        return [TensorDescription(each.name, each.datatype, tuple(each.shape)) for each in response.inputs]

    def model_names(self) -> list[str]:
        request = service_pb2.RepositoryIndexRequest()
        response = self._call(
            lambda: self._stub.RepositoryIndex(request, timeout=self._patience, metadata=self._credential)
        )
        return sorted({model.name for model in response.models if model.state == "READY"})

    def infer(self, question: Question) -> Answer:
        request = service_pb2.ModelInferRequest(model_name=question.model, model_version=question.version)
        for name, (datatype, array) in question.inputs.items():
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(bytes(to_binary(array, datatype)))
        for name in question.outputs:
            request.outputs.add(name=name)
        for key, value in question.parameters.items():
            setattr(request.parameters[key], _field(value), value)
        if question.timeout_ms is not None:
            # Not the library's timeout: it rounds to milliseconds and ends the call without the server's reason.
            request.parameters["timeout"].int64_param = max(1, round(question.timeout_ms * 1000))
        metadata = (("x-isochrone-timing", "1"), *self._credential)
        before = now_ns()
        response, call = self._call(
            lambda: self._stub.ModelInfer.with_call(request, timeout=self._patience, metadata=metadata)
        )
        total_ms = (now_ns() - before) / MILLISECOND
        trailers = dict(call.trailing_metadata() or ())
        try:
            outputs = {
                output.name: from_binary(output.name, output.datatype, tuple(output.shape), raw)
                for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            }
        except (ValueError, IsochroneError) as error:
            raise RequestFailed(f"{self._url} gave an answer that cannot be read: {error}") from None
        return Answer(response.model_version, outputs, parse_server_timing(trailers.get("server-timing", "")), total_ms)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            code, said = error.code(), error.details() or ""
            # The library reports a refused connection as UNAVAILABLE, which a server may answer, too; the library's
            # message contains the address.
            if code is grpc.StatusCode.UNAVAILABLE and "CERTIFICATE_VERIFY_FAILED" in said:
                raise untrusted(self._url, said.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].split(":")[0]) from None
            if code is grpc.StatusCode.UNAVAILABLE and ("failed to connect" in said or "DNS" in said):
                reason = said.rpartition("; last error: ")[2][:200]
                if self._url.startswith("grpcs:") and any(word in said for word in _TLS_FAILURES):
                    raise no_tls(self._url, reason) from None
                raise unreachable(self._url, reason, hint_of_tls(self._url) if is_cut(said) else "") from None
            unknown = code is grpc.StatusCode.NOT_FOUND and "unknown model" in said
            raise RequestFailed(f"{said} (gRPC {code.name})", unknown_model=unknown) from None


def _credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    def read(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    certificates.context()  # raises for wrong files; the library would only log them
    return grpc.ssl_channel_credentials(read(certificates.ca), read(certificates.key), read(certificates.cert))


def _field(value: Any) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param"
    return "double_param" if isinstance(value, float) else "string_param"
