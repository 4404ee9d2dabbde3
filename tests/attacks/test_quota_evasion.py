"""A caller over its quota that tries to be another: by names, ids, connections, protocols and processes.

The rates are so low that no test lasts long enough for a bucket to refill: what is granted is the burst.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
from guarded_servers import inference
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import GatewayProcess, StartGateway
from generation_models import write_sample
from isochrone.secure.access.tokens import digest_of, new_token
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

COUNT = 3
BURST, TENANT_BURST = 30, 20
MODEL = "identity_fp32"
PATH = f"/v2/models/{MODEL}/infer"
CALLERS = ("rogue", "second", "mate", "other", "steady", "free")


@dataclass(frozen=True)
class Limited:
    gateway: GatewayProcess
    tokens: dict[str, str]

    def credential(self, caller: str) -> str:
        return f"Bearer {self.tokens[caller]}"


@contextmanager
def limited(
    folder: Path, start_server: StartServer, start_gateway: StartGateway, rules: str, *flags: str
) -> Iterator[Limited]:
    """A worker without access rules behind a gateway with them."""
    tokens = {name: new_token() for name in CALLERS}
    (folder / "access.yaml").write_text(
        "\n".join(
            [
                "tokens:",
                *(f"  {name}: {{sha256: {digest_of(token)}}}" for name, token in tokens.items()),
                "assign: [{to: ['token:*'], roles: [caller]}]",
                "anonymous: [health, inference, metrics]",
                "tenants: {plant-a: ['token:mate', 'token:other']}",
            ]
        )
    )
    (folder / "rules.yaml").write_text(rules)
    flags = ("--access", str(folder / "access.yaml"), "--rules", str(folder / "rules.yaml"), *flags)
    repository = write_models(folder / "models", MODEL)
    with start_server(repository) as worker, start_gateway([worker], *flags, check_exit=False) as gateway:
        yield Limited(gateway, tokens)


@pytest.fixture
def evaded(tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway) -> Iterator[Limited]:
    """Three processes with low rates."""
    rules = f"""
quota:
  rate: 0.001
  burst: {BURST}
  tenants: {{plant-a: {{burst: {TENANT_BURST}}}}}
"""
    with limited(tmp_path, server_factory, gateway_factory, rules, "--processes", str(COUNT)) as found:
        wait_for(lambda: ready_processes(found.gateway) == COUNT)
        yield found
        assert found.gateway.terminate() == 0


def ready_processes(gateway: GatewayProcess) -> int:
    return sum(event.get("event") == "process ready" for event in gateway.log_events())


def infer(server: ServerProcess, **headers: str) -> tuple[int, str]:
    """One request on a connection of its own: the status and the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)) as connection:
        connection.request("POST", PATH, json.dumps(inference()), {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def message() -> service_pb2.ModelInferRequest:
    asked = service_pb2.ModelInferRequest(model_name=MODEL)
    asked.inputs.add(name="IN", datatype="FP32", shape=[2])
    asked.raw_input_contents.append(bytes(8))
    return asked


def is_granted_by_grpc(server: ServerProcess, credential: str, agent: str) -> bool:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            stub.ModelInfer(message(), metadata=[("authorization", credential), ("x-agent-id", agent)], timeout=60)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return False
        return True


def granted_by_stream(server: ServerProcess, credential: str, count: int) -> int:
    """Of so many messages in one stream."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter([message()] * count), metadata=[("authorization", credential)], timeout=60)
        try:
            return sum(not answer.error_message for answer in answers)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return 0


def times(do: Callable[[int], bool], count: int) -> int:
    """How many of ``count`` attempts, several at once, are granted."""
    with ThreadPoolExecutor(8) as threads:
        return sum(threads.map(do, range(count)))


def test_names_connections_protocols_and_processes(evaded: Limited, tried: Counter[str]) -> None:
    gateway, rogue = evaded.gateway, evaded.credential("rogue")

    def by_http(number: int) -> bool:
        status, text = infer(
            gateway, authorization=rogue, x_agent_id=f"agent-{number}", x_request_id=str(number), x_forwarded_for="9"
        )
        assert status == 200 or (status == 429 and "quota rate of 'token:rogue' is used up" in text), text
        return status == 200

    granted = times(by_http, 3 * BURST)
    # Two processes may decide in the same microsecond.
    assert BURST <= granted <= BURST + COUNT - 1
    tried["another agent's name, on new connections to three processes"] += 3 * BURST - granted
    assert not times(lambda number: is_granted_by_grpc(gateway, rogue, f"agent-{number}"), 20)
    tried["a quota that is used up over HTTP, over gRPC"] += 20
    assert sum(granted_by_stream(gateway, rogue, 10) for _ in range(4)) == 0
    tried["a quota that is used up, in streams"] += 40
    # Names that look like a tenant's, and like another identity's.
    for name in ("tenant:plant-a", "token:steady", "anonymous", ""):
        assert infer(gateway, authorization=rogue, x_agent_id=name)[0] == 429
        tried["an account's name as the agent's name"] += 1
    # Others do not feel it: neither a named caller, nor those without a credential.
    assert all(
        infer(gateway, authorization=evaded.credential("steady"), x_agent_id="rogue")[0] == 200 for _ in range(20)
    )
    assert all(infer(gateway, x_agent_id="token:rogue")[0] == 200 for _ in range(20))


def test_callers_of_one_tenant_share_its_quota(evaded: Limited, tried: Counter[str]) -> None:
    callers = [evaded.credential(name) for name in ("mate", "other")]
    granted = times(lambda number: infer(evaded.gateway, authorization=callers[number % 2])[0] == 200, 3 * TENANT_BURST)
    assert TENANT_BURST <= granted <= TENANT_BURST + COUNT - 1
    tried["a tenant's second identity"] += 3 * TENANT_BURST - granted
    assert "quota rate of 'tenant:plant-a'" in infer(evaded.gateway, authorization=callers[0])[1]
    url = f"http://127.0.0.1:{evaded.gateway.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as page:
        text = page.read().decode()
    refused = 3 * TENANT_BURST - granted + 1
    assert f'isochrone_gateway_quota_rejections_total{{quota="rate",tenant="plant-a"}} {refused}.0' in text


def test_callers_without_a_credential_share_one_account(evaded: Limited, tried: Counter[str]) -> None:
    granted = times(lambda number: infer(evaded.gateway, x_agent_id=f"agent-{number}")[0] == 200, 2 * BURST)
    assert BURST <= granted <= BURST + COUNT - 1
    tried["another agent's name without a credential"] += 2 * BURST - granted


def test_a_process_that_is_started_again_knows_what_was_used(evaded: Limited, tried: Counter[str]) -> None:
    gateway, second = evaded.gateway, evaded.credential("second")
    assert BURST <= times(lambda _: infer(gateway, authorization=second)[0] == 200, 2 * BURST) <= BURST + COUNT - 1
    pids = {event["pid"] for event in gateway.log_events() if event.get("event") == "process ready"}
    for pid in pids:
        psutil.Process(pid).kill()
    wait_for(lambda: ready_processes(gateway) == 2 * COUNT)
    assert times(lambda _: infer(gateway, authorization=second)[0] == 200, BURST) <= COUNT - 1
    tried["a gateway's processes that ended"] += BURST


def test_concurrency_over_processes(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway, tried: Counter[str]
) -> None:
    """Streams that stay open count wherever they are."""
    rules = "quota: {concurrency: 4}"
    with limited(tmp_path, server_factory, gateway_factory, rules, "--processes", str(COUNT)) as found:
        wait_for(lambda: ready_processes(found.gateway) == COUNT)
        metadata = [("authorization", found.credential("rogue"))]
        options = [("grpc.use_local_subchannel_pool", 1)]
        ends = threading.Event()

        def messages() -> Iterator[service_pb2.ModelInferRequest]:
            yield message()
            ends.wait(60)

        with ExitStack() as held:
            held.callback(ends.set)
            granted = 0
            # A call that nobody refers to is cancelled.
            calls = []
            for _ in range(12):
                channel = held.enter_context(grpc.insecure_channel(f"127.0.0.1:{found.gateway.grpc_port}", options))
                answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
                    messages(), metadata=metadata, timeout=60
                )
                calls.append(answers)
                try:
                    granted += not next(answers).error_message
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    tried["streams that stay open, over connections and processes"] += 1
            # They came one after the other: exactly so many.
            assert granted == 4
            assert infer(found.gateway, authorization=found.credential("rogue"))[0] == 429
            assert infer(found.gateway, authorization=found.credential("steady"))[0] == 200
        wait_for(lambda: infer(found.gateway, authorization=found.credential("rogue"))[0] == 200)
        assert found.gateway.terminate() == 0


def test_tokens_however_they_are_asked_for(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway, tried: Counter[str]
) -> None:
    """A quota of tokens holds for whole answers, streams of events and streams whose caller leaves."""
    rules = "quota: {token_rate: 0.001, token_burst: 60}"
    write_sample(tmp_path / "models", "llama")
    with limited(tmp_path, server_factory, gateway_factory, rules) as found:
        for caller, ask in (("rogue", _complete), ("second", _stream), ("mate", _generate), ("free", _leave_stream)):
            credential = {"authorization": found.credential(caller), "content-type": "application/json"}
            answered = 0
            while (status := ask(found.gateway, credential)) == 200:
                answered += 1
                assert answered < 40, f"{caller} gets more tokens than its quota"
            assert status == 429
            assert answered >= 2
            for other in (_complete, _stream, _generate):
                assert other(found.gateway, {**credential, "x-agent-id": "another"}) == 429
                tried["a quota of tokens that is used up, by another call"] += 1
        assert _complete(found.gateway, {"authorization": found.credential("steady")}) == 200


def _post(server: ServerProcess, path: str, headers: dict[str, str], body: object, most: int = -1) -> int:
    """The status; of the answer, ``most`` bytes are read."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read(most) if most >= 0 else answer.read()
        assert answer.status == 200 or b"token_rate" in text
        return answer.status


_ASKED = {"model": "llama", "prompt": "the worker", "max_tokens": 8, "temperature": 0}


def _complete(server: ServerProcess, headers: dict[str, str]) -> int:
    return _post(server, "/v1/completions", headers, _ASKED)


def _stream(server: ServerProcess, headers: dict[str, str]) -> int:
    return _post(server, "/v1/completions", headers, {**_ASKED, "stream": True})


def _leave_stream(server: ServerProcess, headers: dict[str, str]) -> int:
    return _post(server, "/v1/completions", headers, {**_ASKED, "stream": True}, most=40)


def _generate(server: ServerProcess, headers: dict[str, str]) -> int:
    body = {"text_input": "the worker", "max_tokens": 8}
    return _post(server, "/v2/models/llama/generate_stream", headers, body)
