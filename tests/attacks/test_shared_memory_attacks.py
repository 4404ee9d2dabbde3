"""The chain of CVE-2025-23319, -23320 and -23334, and other ways into shared memory, against a real worker.

There, an error named the shared memory between the server and a model's process; registered by that name as a client's
own region, it could be read and overwritten. Here that memory has no name, and clients' regions are checked at each
use.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from guarded_servers import ask
from tritonclient.grpc import service_pb2

from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer

REGION = "/v2/systemsharedmemory/region/{}/register"
INFER = "/v2/models/identity_fp32/infer"
_CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
    parameters { key: "isolation" value { string_value: "process" } }
"""
#: Fails as it is asked to, in each of the ways in which an error of the shared memory could come out.
_FAILING = """
    import os
    import numpy as np

    class Model:
        def infer(self, inputs):
            how = int(inputs["IN"][0])
            if how == 1:
                raise ValueError("failed on purpose")
            if how == 2:
                return {"OUT": np.zeros(1 << 22, np.float64)}
            if how == 3:
                return {"OTHER": inputs["IN"]}
            if how == 4:
                os._exit(3)
            if how == 5:
                return {"OUT": np.array([object()])}
            return {"OUT": inputs["IN"]}
"""


@pytest.fixture(scope="module")
def server(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("memory") / "models", "identity_fp32")
    write_config(repository / "apart", _CONFIG)
    write_python(repository / "apart", _FAILING)
    with server_factory(repository, "--allow-shared-memory") as server:
        yield server


@pytest.fixture(autouse=True)
def _unharmed(server: ServerProcess) -> Iterator[None]:
    yield
    ask(server.http_port, "POST", "/v2/systemsharedmemory/unregister", None, {})
    assert server.process.poll() is None, server.log_text()[-3000:]
    assert infer(server, data=[1.5])[0] == 200


@pytest.fixture
def memory(shared_memory_prefix: str) -> Iterator[Path]:
    """A client's memory of 4096 bytes."""
    path = Path("/dev/shm") / f"{shared_memory_prefix}attacked"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink()


def infer(server: ServerProcess, model: str = "identity_fp32", **source: Any) -> tuple[int, bytes]:
    shape = [len(source["data"])] if "data" in source else source.pop("shape", [4])
    tensor = {"name": "IN", "datatype": "FP32", "shape": shape, **source}
    status, _, answer = ask(server.http_port, "POST", f"/v2/models/{model}/infer", None, {"inputs": [tensor]})
    return status, answer


def register(server: ServerProcess, key: Any, name: str = "mine", **more: Any) -> tuple[int, bytes]:
    body = {"key": key, "offset": 0, "byte_size": 64, **more}
    status, _, answer = ask(server.http_port, "POST", REGION.format(name), None, body)
    return status, answer


def unregister(server: ServerProcess) -> None:
    assert ask(server.http_port, "POST", "/v2/systemsharedmemory/unregister", None, {})[0] == 200


def test_memory_of_model_processes_has_no_name_and_errors_tell_none(server: ServerProcess, tried: Counter[str]) -> None:
    assert infer(server, "apart", data=[0.5])[0] == 200
    before = len(server.log_text())
    for how in (1.0, 2.0, 3.0, 4.0, 5.0):
        status, answer = infer(server, "apart", data=[how])
        assert status >= 400, how
        assert not re.search(rb"memfd|/dev/shm|/proc/|shared[_ ]memory|shm", answer), answer
        tried["errors of a model's process, searched for its memory"] += 1
    assert not re.search(r"memfd|/dev/shm|/proc/\d", server.log_text()[before:])
    # What an attacker with a look into /proc would know, more than any error says.
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    names = set()
    for process in processes:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            if "memfd:" in line or "/dev/shm" in line:
                names.add(line.split(None, 5)[5])
    assert names, "the isolated model shares memory"
    assert not [name for name in names if name.startswith("/dev/shm")], "memory with a name can be registered"
    keys = []
    for name in names:
        bare = name.removeprefix("/").removesuffix(" (deleted)").removeprefix("memfd:")
        keys += [bare, "/" + bare, "memfd:" + bare, "/memfd:" + bare, name, f"/memfd:{bare} (deleted)"]
    for process in processes:
        for number in os.listdir(f"/proc/{process.pid}/fd"):
            keys += [f"/proc/{process.pid}/fd/{number}", f"../../proc/{process.pid}/fd/{number}"]
    for key in keys:
        status, answer = register(server, key)
        assert status == 400, (key, answer)
        tried["a model's memory registered as a client's"] += 1


def test_keys_that_lead_elsewhere(server: ServerProcess, tried: Counter[str], tmp_path: Path, memory: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(4096))
    link, pipe, folder = (memory.with_name(memory.name + ending) for ending in ("_link", "_pipe", "_folder"))
    link.symlink_to(outside)
    os.mkfifo(pipe)
    folder.mkdir()
    inside = folder / "inside"
    inside.write_bytes(bytes(4096))
    try:
        for key in (
            *(link.name, "/" + link.name, pipe.name, folder.name, f"{folder.name}/inside", f"/{folder.name}/inside"),
            *(f"/../{memory.name}", f"/./{memory.name}", f"//{memory.name}", f"/{memory.name}/", f"{memory.name}\0"),
            *(f"/x/../{memory.name}", "/dev/shm/" + memory.name, str(outside), f"/..{outside}", "..", ".", "/", ""),
            *("%2e%2e%2fetc%2fpasswd", "\u2025/etc/passwd", "..\\etc", "/etc/passwd", "a" * 256, "\udc80", " ", "*"),
        ):
            status, answer = register(server, key)
            assert status == 400, (key, answer)
            tried["keys that lead out of /dev/shm"] += 1
    finally:
        link.unlink()
        pipe.unlink()
        inside.unlink()
        folder.rmdir()


def test_sizes_and_offsets(server: ServerProcess, tried: Counter[str], memory: Path) -> None:
    huge = (4097, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, -1, -4096)
    for more in (
        *({"byte_size": size} for size in (0, *huge)),
        *({"offset": offset} for offset in (4033, 4096, *huge)),
        *({"offset": offset, "byte_size": (1 << 64) - offset + 64} for offset in (64, 4096)),
        *({"byte_size": value} for value in (64.0, "64", True, None, [64], {})),
        *({"offset": value} for value in (0.0, "0", False, [0])),
    ):
        status, answer = register(server, memory.name, **more)
        assert status == 400, (more, answer)
        tried["regions beyond their memory"] += 1
    assert register(server, memory.name)[0] == 200
    region = {"shared_memory_region": "mine"}
    for parameters in (
        *({"shared_memory_byte_size": size} for size in (65, 0, *huge)),
        *({"shared_memory_offset": offset, "shared_memory_byte_size": 16} for offset in (49, 64, *huge)),
        {"shared_memory_offset": (1 << 63) - 8, "shared_memory_byte_size": 16},
        {"shared_memory_byte_size": 12},
        {"shared_memory_byte_size": 17},
        {"shared_memory_byte_size": 16, "shared_memory_region": "other"},
        {"shared_memory_byte_size": 16, "shared_memory_region": memory.name},
        {"shared_memory_byte_size": 16, "shared_memory_region": "../mine"},
        {"shared_memory_byte_size": 16, "shared_memory_region": 7},
        {"shared_memory_byte_size": True},
        {"shared_memory_byte_size": "16"},
    ):
        status, answer = infer(server, parameters={**region, **parameters})
        # 404: a region that is not registered, or a name that is none.
        assert status in (400, 404), (parameters, answer)
        output = {"name": "OUT", "parameters": {**region, **parameters}}
        tensor = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
        status, _, answer = ask(server.http_port, "POST", INFER, None, {"inputs": [tensor], "outputs": [output]})
        # A larger place than the output needs is a good one.
        roomy = parameters.get("shared_memory_byte_size") == 17
        assert status in (400, 404) or roomy, (parameters, answer)
        tried["inputs and outputs beyond their region"] += 2
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for offset, size in ((64, 16), (-1, 16), ((1 << 63) - 1, 16), (0, 1 << 40), (-(1 << 63), 16), (0, -16)):
            request = service_pb2.ModelInferRequest(model_name="identity_fp32")
            tensor = request.inputs.add(name="IN", datatype="FP32", shape=[4])
            tensor.parameters["shared_memory_region"].string_param = "mine"
            tensor.parameters["shared_memory_byte_size"].int64_param = size
            tensor.parameters["shared_memory_offset"].int64_param = offset
            with pytest.raises(grpc.RpcError) as caught:
                call(request.SerializeToString(), timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            tried["inputs and outputs beyond their region"] += 1
    assert memory.read_bytes()[64:] == bytes(4032), "nothing was written beyond the region"
    unregister(server)


def test_one_name_registered_by_many_at_once(server: ServerProcess, tried: Counter[str], memory: Path) -> None:
    statuses: list[int] = []
    ready = threading.Barrier(16)

    def compete() -> None:
        ready.wait()
        statuses.append(register(server, memory.name)[0])

    threads = [threading.Thread(target=compete) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [400] * 15
    tried["one region's name taken by many at once"] += 15
    unregister(server)


def test_memory_that_shrinks_after_it_was_registered(server: ServerProcess, tried: Counter[str], memory: Path) -> None:
    """A read of a page that is gone would end the worker with SIGBUS."""
    output = {"name": "OUT", "parameters": {"shared_memory_region": "mine", "shared_memory_byte_size": 16}}
    tensor = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    for kept in (0, 1, 15):
        memory.write_bytes(bytes(4096))
        assert register(server, memory.name)[0] == 200
        place = {"shared_memory_region": "mine", "shared_memory_byte_size": 16}
        assert infer(server, parameters=place)[0] == 200
        os.truncate(memory, kept)
        status, answer = infer(server, parameters=place)
        assert (status, b"now ends" in answer) == (400, True), answer
        status, _, answer = ask(server.http_port, "POST", INFER, None, {"inputs": [tensor], "outputs": [output]})
        assert (status, b"now ends" in answer) == (400, True), answer
        tried["memory that shrinks after it was registered"] += 2
        os.truncate(memory, 4096)
        assert infer(server, parameters=place)[0] == 200
        unregister(server)
    # Memory that was removed stays the client's until it is unregistered; another one of that name is another.
    memory.write_bytes(bytes(4096))
    assert register(server, memory.name)[0] == 200
    memory.unlink()
    memory.write_bytes(b"\x7f" * 4096)
    status, answer = infer(server, parameters={"shared_memory_region": "mine", "shared_memory_byte_size": 16})
    assert status == 200
    assert b"[0.0,0.0,0.0,0.0]" in answer
    unregister(server)


def test_shared_memory_is_off_unless_it_is_allowed(
    server_factory: StartServer, tmp_path: Path, tried: Counter[str], memory: Path
) -> None:
    with server_factory(write_models(tmp_path / "models", "identity_fp32")) as server:
        for path, body in (
            (REGION.format("mine"), {"key": memory.name, "byte_size": 64}),
            (
                "/v2/cudasharedmemory/region/mine/register",
                {"raw_handle": {"b64": "AAAA"}, "byte_size": 64, "device_id": 0},
            ),
        ):
            status, _, answer = ask(server.http_port, "POST", path, None, body)
            assert status >= 400, answer
            assert b"not supported" in answer or b"--allow" in answer, answer
            tried["shared memory where it is off"] += 1
