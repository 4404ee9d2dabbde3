"""System shared memory by the stock clients: in, out, status, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils
import tritonclient.utils.shared_memory as shared_memory
from stock_clients import KINDS, Array, StockClient
from tritonclient.utils import InferenceServerException

from sample_models import write_models
from server_process import ServerProcess, StartServer

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
ONES = np.ones((1, 16), np.float32)


class Region:
    """A region of the client's, registered with the server for the length of a test."""

    def __init__(self, client: StockClient, name: str, key: str, size: int) -> None:
        self.name, self.key, self.size = name, key, size
        self.handle = shared_memory.create_shared_memory_region(name, key, size)
        client.call("register_system_shared_memory", name, key, size)

    def write(self, *arrays: Array, offset: int = 0) -> None:
        shared_memory.set_shared_memory_region(self.handle, list(arrays), offset=offset)

    def read(self, dtype: Any, shape: list[int], offset: int = 0) -> Array:
        view: Array = shared_memory.get_contents_as_numpy(self.handle, dtype, shape, offset)
        return np.array(view)


@pytest.fixture
def region(client: StockClient, shared_memory_prefix: str) -> Iterator[Region]:
    made = Region(client, "numbers", shared_memory_prefix + client.kind, 4096)
    yield made
    client.call("unregister_system_shared_memory", "numbers")
    shared_memory.destroy_shared_memory_region(made.handle)


def _input(client: StockClient, name: str, shape: list[int], datatype: str, size: int, offset: int = 0) -> Any:
    made = client.module.InferInput(name, shape, datatype)
    made.set_shared_memory("numbers", size, offset)
    return made


def _output(client: StockClient, name: str, size: int, offset: int) -> Any:
    made = client.module.InferRequestedOutput(name)
    made.set_shared_memory("numbers", size, offset)
    return made


class TestInference:
    def test_in_and_out(self, client: StockClient, region: Region) -> None:
        region.write(SIXTEEN, ONES)
        inputs = [
            _input(client, "INPUT0", [1, 16], "FP32", 64),
            _input(client, "INPUT1", [1, 16], "FP32", 64, 64),
        ]
        outputs = [_output(client, "OUTPUT0", 100, 1024), _output(client, "OUTPUT1", 64, 2048)]
        result = client.call("infer", "add_sub", inputs, outputs=outputs)
        assert np.array_equal(region.read(np.float32, [1, 16], 1024), SIXTEEN + 1)
        assert np.array_equal(region.read(np.float32, [1, 16], 2048), SIXTEEN - 1)
        # As Triton's: the answer does not repeat where the outputs are, and gRPC's raw entries keep their positions.
        if client.is_http:
            assert "parameters" not in result.get_output("OUTPUT0")
        else:
            assert not result.get_output("OUTPUT0").parameters
            assert list(result.get_response().raw_output_contents) == [b"", b""]

    def test_one_output_in_the_message(self, client: StockClient, region: Region) -> None:
        region.write(SIXTEEN, ONES)
        inputs = [_input(client, "INPUT0", [1, 16], "FP32", 64), _input(client, "INPUT1", [1, 16], "FP32", 64, 64)]
        outputs = [_output(client, "OUTPUT0", 64, 1024), client.output("OUTPUT1")]
        result = client.call("infer", "add_sub", inputs, outputs=outputs)
        assert np.array_equal(region.read(np.float32, [1, 16], 1024), SIXTEEN + 1)
        # The stock client looks raw entries up by the output's position.
        assert np.array_equal(result.as_numpy("OUTPUT1"), SIXTEEN - 1)

    def test_one_input_in_the_message(self, client: StockClient, region: Region) -> None:
        region.write(SIXTEEN)
        inputs = [_input(client, "INPUT0", [1, 16], "FP32", 64), client.input("INPUT1", ONES)]
        outputs = [client.output("OUTPUT0"), _output(client, "OUTPUT1", 64, 1024)]
        result = client.call("infer", "add_sub", inputs, outputs=outputs)
        assert np.array_equal(result.as_numpy("OUTPUT0"), SIXTEEN + 1)
        assert np.array_equal(region.read(np.float32, [1, 16], 1024), SIXTEEN - 1)

    def test_strings(self, client: StockClient, region: Region) -> None:
        words = np.array([b"low", b"", b"latency"], np.object_)
        region.write(tritonclient.utils.serialize_byte_tensor(words))
        size = sum(4 + len(word) for word in words)
        outputs = [_output(client, "OUT", 1024, 1024)]
        client.call("infer", "identity_bytes", [_input(client, "IN", [3], "BYTES", size)], outputs=outputs)
        assert region.read(np.object_, [3], 1024).tolist() == words.tolist()

    def test_what_the_client_writes_next_is_read_next(self, client: StockClient, region: Region) -> None:
        for number in range(3):
            region.write(np.full(4, number, np.int32))
            result = client.call("infer", "identity_int32", [_input(client, "IN", [4], "INT32", 16)])
            assert result.as_numpy("OUT").tolist() == [number] * 4


class TestStatus:
    def test_registered_and_gone(self, client: StockClient, region: Region) -> None:
        rows = client.control("get_system_shared_memory_status")
        found = rows[0] if client.is_http else rows["regions"]["numbers"]
        assert found["name"] == "numbers"
        assert found["key"] == region.key
        assert int(found["byte_size"]) == 4096
        client.call("unregister_system_shared_memory")
        rows = client.control("get_system_shared_memory_status")
        assert not (rows if client.is_http else rows.get("regions"))


class TestRefusals:
    def test_a_name_twice(self, client: StockClient, region: Region) -> None:
        with pytest.raises(InferenceServerException, match=r"shared memory region 'numbers' already in manager"):
            client.call("register_system_shared_memory", "numbers", region.key, 4096)

    @pytest.mark.parametrize("key", ["../etc/passwd", "a/b", "", "/nowhere_to_be_found"])
    def test_a_key_that_is_no_region(self, client: StockClient, key: str) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.call("register_system_shared_memory", "bad", key, 64)
        assert "bad" in caught.value.message() or "key" in caught.value.message()
        assert caught.value.status() in ("400", "404", "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND")

    def test_more_than_the_region_holds(self, client: StockClient, region: Region) -> None:
        with pytest.raises(InferenceServerException, match="numbers"):
            client.call("infer", "identity_int32", [_input(client, "IN", [4], "INT32", 16, 4090)])
        small = [_output(client, "OUT", 8, 0)]
        with pytest.raises(InferenceServerException, match=r"at least 16 bytes"):
            client.call("infer", "identity_int32", [client.input("IN", np.ones(4, np.int32))], outputs=small)

    def test_an_unknown_region(self, client: StockClient) -> None:
        with pytest.raises(InferenceServerException, match="numbers"):
            client.call("infer", "identity_int32", [_input(client, "IN", [4], "INT32", 16)])

    def test_cuda(self, client: StockClient) -> None:
        """As on a Triton without a GPU: clients unregister everything before they start."""
        client.call("unregister_cuda_shared_memory")
        client.call("unregister_cuda_shared_memory", "gpu")
        rows = client.control("get_cuda_shared_memory_status")
        assert not (rows if client.is_http else rows.get("regions"))
        with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'gpu'"):
            client.control("get_cuda_shared_memory_status", "gpu")
        with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
            client.call("register_cuda_shared_memory", "gpu", b"aGFuZGxl", 0, 64)


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository: Path = write_models(tmp_path_factory.mktemp("closed") / "models", "identity_int32")
    with server_factory(repository) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_off_unless_allowed(closed_server: ServerProcess, kind: str) -> None:
    client = StockClient(kind, closed_server)
    assert "system_shared_memory" not in client.control("get_server_metadata")["extensions"]
    with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
        client.call("register_system_shared_memory", "numbers", "/numbers", 64)
    with pytest.raises(InferenceServerException, match="--allow-shared-memory"):
        client.call("infer", "identity_int32", [_input(client, "IN", [4], "INT32", 16)])
    client.close()
