"""Sampled requests replayed to a real worker with two versions of a model: what is equal, different, not comparable."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from development_ca import DevelopmentCa
from isochrone.control.evaluation.replay import Comparison, compare_versions
from isochrone.control.state.process_records import NO_FIELDS, WorkerRecord
from isochrone.control.state.rollout_records import CompareRule
from isochrone.errors import Unavailable
from isochrone.gateway.evaluation.sampling import GRPC, GRPC_PATH, HTTP, Sample
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.process_tls import set_process_tls
from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer

pytestmark = pytest.mark.long

MODEL = """
import itertools

import numpy as np


class Model:
    def load(self, context):
        self.version = int(context.model_version)
        self.calls = itertools.count()

    def infer(self, inputs):
        x = inputs["X"]
        if (x < 0).any():
            raise ValueError(f"version {self.version}: X is negative")
        if (x == 50).any() and self.version == 2:
            raise ValueError("the new version cannot do this")
        y = x * 2
        # Within the tolerance; far off where X is 7; now so, now so where it is 13.
        y = y + np.float32(1e-5) * (self.version - 1)
        y = np.where(x == 7, y + 100 * (self.version - 1), y)
        y = np.where(x == 13, y + next(self.calls), y)
        return {"Y": y.astype(np.float32)}
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[WorkerRecord]:
    with server_factory(repository(tmp_path_factory.mktemp("comparing"))) as server:
        yield record(server)


def repository(folder: Path) -> Path:
    directory = folder / "models" / "twice"
    write_config(
        directory,
        """
        backend: "python"
        version_policy { all { } }
        input { name: "X" data_type: TYPE_FP32 dims: [2] }
        output { name: "Y" data_type: TYPE_FP32 dims: [2] }
        """,
    )
    for version in (1, 2):
        write_python(directory, MODEL, version)
    return directory.parent


def record(server: ServerProcess) -> WorkerRecord:
    return WorkerRecord("w", "127.0.0.1", server.http_port, server.grpc_port)


def as_json(*x: float, compressed: bool = False) -> Sample:
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(x)], "data": list(x)}
    body = msgspec.json.encode({"inputs": [tensor]})
    headers = {"content-type": "application/json"}
    if compressed:
        return Sample(HTTP, "/infer", {**headers, "content-encoding": "gzip"}, gzip.compress(body))
    return Sample(HTTP, "/infer", headers, body)


def as_binary(*x: float) -> Sample:
    data = np.array(x, "<f4").tobytes()
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(x)], "parameters": {"binary_data_size": len(data)}}
    head = msgspec.json.encode({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return Sample(HTTP, "/infer", headers, head + data)


def as_message(*x: float) -> Sample:
    message = service_pb2.ModelInferRequest(model_name="twice")
    message.inputs.add(name="X", datatype="FP32", shape=[len(x)])
    message.raw_input_contents.append(np.array(x, "<f4").tobytes())
    return Sample(GRPC, GRPC_PATH.decode(), {}, message.SerializeToString())


KINDS = (as_json, as_binary, as_message)


def compare(
    worker: WorkerRecord, samples: Sequence[Sample], rule: CompareRule | None = None, own: Mapping[str, str] = NO_FIELDS
) -> Comparison:
    async def compared() -> Comparison:
        try:
            return await compare_versions(samples, worker, "twice", "1", "2", rule or CompareRule(), own)
        finally:
            # A transport whose handshake failed is closed in a later turn of the loop.
            for _ in range(20):
                await asyncio.sleep(0)

    return asyncio.run(compared())


def test_answers_within_the_tolerance_and_refusals_of_both_are_equal(worker: WorkerRecord) -> None:
    # Two elements are right, a negative one fails in both versions, three elements are refused by both.
    samples = [kind(*x) for kind in KINDS for x in ((1.0, 2.0), (-1.0, 2.0), (1.0, 2.0, 3.0))]
    samples.append(as_json(1.0, 3.0, compressed=True))
    assert compare(worker, samples) == Comparison(10, 0, 0, None, ())


def test_answers_beyond_the_tolerance_are_found_in_every_form(worker: WorkerRecord) -> None:
    found = compare(worker, [kind(*x) for kind in KINDS for x in ((1.0, 7.0), (3.0, 4.0))])
    assert (found.total, found.different, found.unsteady) == (6, 3, 0)
    told = "output 'Y': 114.00001 at [1], expected 14.0 (1 of 2 elements differ)"
    assert [str(example) for example in found.examples] == [told] * 3
    assert not found.passes(CompareRule())
    exact = compare(worker, [as_binary(1.0, 2.0)], CompareRule(relative=0, absolute=0))
    assert exact.different == 1


def test_an_error_of_the_new_version_alone_is_a_difference(worker: WorkerRecord) -> None:
    found = compare(worker, [kind(50.0, 1.0) for kind in KINDS])
    assert found.different == 3
    assert found.examples[0].reason.startswith("HTTP 500 (")
    assert found.examples[2].reason.startswith("gRPC status 13 (")
    assert "the new version cannot do this" in found.examples[2].reason
    assert found.examples[2].reason.endswith("expected an answer")


def test_what_the_old_version_answers_now_so_now_so_is_not_comparable(worker: WorkerRecord) -> None:
    found = compare(worker, [kind(13.0, 1.0) for kind in KINDS])
    assert (found.different, found.unsteady) == (0, 3)


def test_requests_that_write_to_shared_memory_are_not_replayed(worker: WorkerRecord) -> None:
    body = gzip.compress(b'{"inputs": [], "outputs": [{"parameters": {"shared_memory_region": "mine"}}]}')
    assert compare(worker, [Sample(HTTP, "/infer", {"content-encoding": "gzip"}, body)]).total == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_not_there_is_an_error(kind: object) -> None:
    sample = as_message(1.0, 2.0) if kind is as_message else as_json(1.0, 2.0)
    with pytest.raises(Unavailable):
        compare(WorkerRecord("gone", "127.0.0.1", 1, 1), [sample])


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[DevelopmentCa]:
    """This process has the fleet's certificate, which names no address."""
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "fleet.internal", client=True)
    certificate, key = ca.pair("fleet")
    set_process_tls(ClientTls(ca.ca, Path(certificate), Path(key), "fleet.internal"))
    yield ca
    set_process_tls(None)


def test_a_worker_with_tls_that_checks_its_callers(
    certified: DevelopmentCa, tmp_path: Path, server_factory: StartServer
) -> None:
    access, token = tmp_path / "access.yaml", new_token()
    rules = "assign: [{to: ['token:controller'], roles: [caller]}]"
    access.write_text(f"tokens: {{controller: {{sha256: {digest_of(token)}}}}}\n{rules}\n")
    own, flags = {"authorization": f"Bearer {token}"}, ("--access", str(access), *certified.server_flags("fleet"))
    with server_factory(repository(tmp_path), *flags) as server:
        of_fleet = msgspec.structs.replace(record(server), tls=True, incarnation="1")
        samples = [kind(*x) for kind in KINDS for x in ((1.0, 2.0), (1.0, 7.0))]
        found = compare(of_fleet, samples, own=own)
        # A difference in every form: no request was answered with an error alone.
        assert (found.total, found.different, found.unsteady) == (6, 3, 0)
        foreign = DevelopmentCa(tmp_path / "foreign").issue("fleet", "fleet.internal", client=True)
        set_process_tls(ClientTls(foreign.ca, server_name="fleet.internal"))
        for kind in KINDS:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                compare(of_fleet, [kind(1.0, 2.0)], own=own)


@pytest.mark.usefixtures("certified")
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_worker_of_a_fleet_with_tls_gets_nothing(kind: Callable[..., Sample]) -> None:
    """The port is closed: the error would name it."""
    with pytest.raises(Unavailable, match="the fleet requires TLS"):
        compare(WorkerRecord("plain", "127.0.0.1", 1, 1), [kind(1.0, 2.0)])
