"""Callers that show a certificate: each is who its certificate says, on its own connections, over both protocols."""

from __future__ import annotations

import http.client
import json
import ssl
from collections import Counter
from pathlib import Path

import grpc
from guarded_servers import inference
from tritonclient.grpc import service_pb2, service_pb2_grpc

from development_ca import DevelopmentCa
from isochrone.secure.access.tokens import digest_of, new_token
from sample_models import write_models
from server_process import StartServer

PATH = "/v2/models/identity_fp32/infer"


def test_a_certificate_is_an_identity(tmp_path: Path, server_factory: StartServer, tried: Counter[str]) -> None:
    ca = DevelopmentCa(tmp_path / "ca")
    ca.issue("server", "localhost", "127.0.0.1")
    ca.issue("pilot", uri="spiffe://plant/pilot", client=True)
    ca.issue("cleaner", uri="spiffe://plant/cleaner", client=True)
    token = new_token()
    (tmp_path / "access.yaml").write_text(
        f"""
tokens: {{limited: {{sha256: {digest_of(token)}}}}}
assign:
  - {{to: ["certificate:spiffe://plant/pilot"], roles: [caller]}}
  - {{to: ["certificate:spiffe://plant/pilot*", "token:limited"], roles: [reader]}}
"""
    )
    repository = write_models(tmp_path / "models", "identity_fp32")
    with server_factory(
        repository, *ca.server_flags("server"), "--access", str(tmp_path / "access.yaml"), "--require-secure"
    ) as server:

        def connect(name: str) -> http.client.HTTPSConnection:
            context: ssl.SSLContext = ca.context(name)
            return http.client.HTTPSConnection("127.0.0.1", server.http_port, context=context, timeout=60)

        def status(connection: http.client.HTTPSConnection, **headers: str) -> int:
            connection.request("POST", PATH, json.dumps(inference()), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        # The same bytes in turns on two connections: what one may do is not remembered for the other.
        pilot, cleaner = connect("pilot"), connect("cleaner")
        for _ in range(5):
            assert status(pilot) == 200
            assert status(cleaner) == 403
            tried["a certificate of another identity"] += 1
        # A token counts where one is sent, whatever the certificate allows.
        assert status(pilot, authorization=f"Bearer {token}") == 403
        assert status(pilot, authorization="Bearer wrong") == 401
        assert status(pilot) == 200
        tried["a bad token beside a good certificate"] += 2
        pilot.close()
        cleaner.close()

        message = service_pb2.ModelInferRequest(model_name="identity_fp32")
        message.inputs.add(name="IN", datatype="FP32", shape=[2])
        message.raw_input_contents.append(bytes(8))
        for name, expected in (("pilot", grpc.StatusCode.OK), ("cleaner", grpc.StatusCode.PERMISSION_DENIED)):
            certificate, key = (Path(path).read_bytes() for path in ca.pair(name))
            credentials = grpc.ssl_channel_credentials(ca.ca.read_bytes(), key, certificate)
            with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                for _ in range(4):
                    try:
                        stub.ModelInfer(message, timeout=60)
                        code = grpc.StatusCode.OK
                    except grpc.RpcError as error:
                        code = error.code()
                    assert code is expected, name
                    tried["a certificate of another identity"] += name == "cleaner"
