"""An ensemble's stages pinned by header and by metadata: both protocols, several clients at once, one real server.

Two versions of both stages are loaded. Whatever else runs meanwhile, an answer is of the versions its request named.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer

HEADER = "x-isochrone-stages"
_TENSORS = """
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_INT32 dims: [1] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
"""
#: Appends its version's digit: 0 becomes 11 or 22 where both stages agree.
_SOURCE = """
    class Model:
        def infer(self, inputs):
            return {"OUT": inputs["IN"] * 10 + %d}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("stages") / "models"
    for name in ("first", "second"):
        write_config(repository / name, f'backend: "python"{_TENSORS}version_policy {{ all {{}} }}')
        for version in (1, 2):
            write_python(repository / name, _SOURCE % version, version)
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "{given}" }} '
        f'output_map {{ key: "OUT" value: "{made}" }} }}\n'
        for name, given, made in (("first", "IN", "between"), ("second", "between", "OUT"))
    )
    write_config(repository / "graph", f'platform: "ensemble"{_TENSORS}ensemble_scheduling {{ {steps} }}')
    (repository / "graph" / "1").mkdir()
    with server_factory(repository) as started:
        yield started


def stages(version: int) -> dict[str, str]:
    return {HEADER: f"first={version},second={version}"}


def ask(client: StockClient, headers: dict[str, str] | None) -> int:
    # A shape that is plain: binary, memoised by its head.
    answer = client.infer("graph", {"IN": np.zeros((1, 1), np.int32)}, headers=headers)
    return int(answer.as_numpy("OUT").item())


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_header_pins_every_stage(server: ServerProcess, kind: str) -> None:
    client = StockClient(kind, server)
    try:
        assert ask(client, None) == 22
        assert [ask(client, stages(version)) for version in (1, 2, 1)] == [11, 22, 11]
        assert ask(client, {HEADER: "first=1,second=2"}) == 12
        for value, words in (("first=3", "version 3 of step 'first'"), ("first=x", HEADER), ("", HEADER)):
            with pytest.raises(InferenceServerException, match=words):
                ask(client, {HEADER: value})
    finally:
        client.close()


def test_plain_models_take_no_notice(server: ServerProcess) -> None:
    client = StockClient("http", server)
    try:
        answer = client.infer("first", {"IN": np.zeros((1, 1), np.int32)}, headers={HEADER: "first=1"})
        assert answer.as_numpy("OUT").item() == 2
    finally:
        client.close()


def test_generate_is_pinned_too(server: ServerProcess) -> None:
    def generate(value: str) -> Any:
        url = f"http://{server.http_url}/v2/models/graph/generate"
        request = urllib.request.Request(url, b'{"IN": 0}', headers={HEADER: value})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["OUT"]

    assert generate("first=1,second=1") == 11
    with pytest.raises(urllib.error.HTTPError) as caught:
        generate("first=9")
    assert caught.value.code == 503
    caught.value.close()


def test_a_stream_is_pinned_for_as_long_as_it_lasts(server: ServerProcess) -> None:
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result), headers=stages(1))
        for _ in range(5):
            given = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
            given.set_data_from_numpy(np.zeros((1, 1), np.int32))
            client.async_stream_infer("graph", [given])
        client.stop_stream()
    assert [int(answer.as_numpy("OUT").item()) for answer in answers] == [11] * 5


def test_clients_at_once_get_the_stages_each_asked_for(server: ServerProcess) -> None:
    def client_of(number: int) -> list[int]:
        client = StockClient(("http", "grpc")[number % 2], server)
        version = 1 + number // 2 % 2
        try:
            return [ask(client, stages(version)) - 11 * version for _ in range(100)]
        finally:
            client.close()

    with ThreadPoolExecutor(8) as pool:
        for differences in pool.map(client_of, range(8)):
            assert differences == [0] * 100
