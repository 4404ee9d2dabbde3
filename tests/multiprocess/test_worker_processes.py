"""``isochrone serve --processes``: control calls reach every process, and what they count adds up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory
from process_groups import (
    MANY,
    ONE,
    ask,
    ask_process,
    identity_request,
    infer_over_many_connections,
    is_ready,
    metrics_text,
    samples,
    serving,
    wait_for,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from tritonclient.utils import InferenceServerException

from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer

COUNT = 3
KINDS = ("http", "grpc")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    write_models(models, "identity_int32", "add_sub")
    for kind in KINDS:
        write_models(models, "identity_int32").joinpath("identity_int32").rename(models / f"copy_{kind}")
        text = (models / f"copy_{kind}" / "config.pbtxt").read_text().replace("identity_int32", f"copy_{kind}")
        (models / f"copy_{kind}" / "config.pbtxt").write_text(text)
    write_models(models, "identity_int32")
    # Its load succeeds in the process that comes first, and fails in the others.
    write_config(
        models / "first_only",
        """
        backend: "python"
        input { name: "IN" data_type: TYPE_INT32 dims: -1 }
        output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
        """,
    )
    write_python(
        models / "first_only",
        f"""
        import os

        class Model:
            def load(self, context):
                if not os.path.exists({str(models / "repaired")!r}):
                    os.close(os.open({str(models / "taken")!r}, os.O_CREAT | os.O_EXCL))

            def infer(self, inputs):
                return {{"OUT": inputs["IN"]}}
        """,
    )
    return models


@pytest.fixture(scope="module")
def server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    with server_factory(
        repository,
        *("--processes", str(COUNT), "--allow-shared-memory", "--trace-config", f"triton,file={os.devnull}"),
        *("--model-control-mode", "explicit", "--load-model", "identity_int32", "--load-model", "add_sub"),
    ) as server:
        # A process is ready a moment before it says so.
        wait_for(lambda: len(serving(server)) == COUNT)
        yield server


def _client(server: ServerProcess, kind: str) -> Any:
    if kind == "http":
        return tritonclient.http.InferenceServerClient(server.http_url)
    return tritonclient.grpc.InferenceServerClient(server.grpc_url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_and_an_unload_reach_every_process(server: ServerProcess, kind: str) -> None:
    model = f"copy_{kind}"
    client = _client(server, kind)
    assert not client.is_model_ready(model)
    client.load_model(model)
    assert client.is_model_ready(model)
    assert len(serving(server)) == COUNT
    for pid in serving(server).values():
        assert ask_process(pid, "GET", f"/v2/models/{model}/ready")[0] == 200
    infer_over_many_connections(server, model, kind)
    client.unload_model(model)
    for pid in serving(server).values():
        assert ask_process(pid, "GET", f"/v2/models/{model}/ready")[0] == 400
    assert not client.is_model_ready(model)
    client.close()


def test_statistics_and_metrics_are_the_sum_of_all_processes(server: ServerProcess) -> None:
    client = _client(server, "http")
    client.load_model("copy_http")
    infer_over_many_connections(server, "copy_http")
    statistics = client.get_inference_statistics("copy_http")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == MANY
    assert statistics["inference_count"] == MANY
    own = {
        number: ask_process(pid, "GET", "/v2/models/copy_http/stats")[1]["model_stats"][0]
        for number, pid in serving(server).items()
    }
    assert all(each["inference_count"] < MANY for each in own.values()), "no process had all of them"
    assert statistics["last_inference"] == max(each["last_inference"] for each in own.values())
    over_grpc = _client(server, "grpc")
    counted = over_grpc.get_inference_statistics("copy_http").model_stats[0]
    assert counted.inference_stats.success.count == MANY
    over_grpc.close()
    assert samples(server, "nv_inference_request_success", model="copy_http") == {
        (("model", "copy_http"), ("version", "1")): MANY
    }
    ends = samples(server, "isochrone_request_duration_seconds_bucket", model="copy_http", stage="request", le="+Inf")
    assert list(ends.values()) == [MANY]
    client.unload_model("copy_http")
    client.close()


def test_the_page_is_also_there_in_open_metrics(server: ServerProcess) -> None:
    text = metrics_text(server, "application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    assert "isochrone_processes 3.0" in text
    # The strict parser: names and types are OpenMetrics', and so are the samples of each family.
    found = {family.name: family.type for family in parse_open_metrics(text)}
    assert found["nv_inference_request_success"] == "unknown", "Triton's counters have no suffix"
    assert found["isochrone_process_restarts"] == "counter"
    assert "# EOF" not in metrics_text(server), "the next scraper's format is its own"
    assert len(set(re.findall(r"^# TYPE (\S+)", text, re.M))) == len(re.findall(r"^# TYPE (\S+)", text, re.M))


def test_the_docs_name_real_metrics(server: ServerProcess) -> None:
    page = metrics_text(server)
    docs = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().partition("\n## Several processes")[2]
    # Without a response cache or a GPU their metrics are not there, as in Triton.
    absent = ("nv_cache", "nv_gpu", "nv_energy")
    named = {name for name in re.findall(r"`((?:nv|isochrone)_[a-z_]+)", docs) if not name.startswith(absent)}
    assert len(named) > 10
    for name in named:
        assert re.search(rf"^# TYPE {name} ", page, re.M), name


def test_figures_of_a_process_carry_its_number(server: ServerProcess) -> None:
    numbers = {(("process", str(number)),) for number in range(1, COUNT + 1)}
    assert samples(server, "process_resident_memory_bytes").keys() == numbers
    assert samples(server, "isochrone_process_restarts_total").keys() == numbers


def test_processes_share_memory_and_say_how_much(server: ServerProcess) -> None:
    shared = samples(server, "isochrone_process_memory_shared_bytes")
    assert len(shared) == COUNT
    assert min(shared.values()) > 10e6
    events = server.log_events()
    assert all(event["shared_mb"] > 10 for event in events if event.get("event") == "process ready")
    started = next(event for event in events if event.get("event") == "starting processes")
    assert started["instances_with_shared_weights"] == 1, "add_sub is onnxruntime's"
    client = _client(server, "http")
    assert client.is_model_ready("add_sub")
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory(server: ServerProcess, kind: str, shared_memory_prefix: str) -> None:
    client = _client(server, kind)
    handle = shared_memory.create_shared_memory_region("numbers", f"{shared_memory_prefix}mp_{kind}", 64)
    try:
        shared_memory.set_shared_memory_region(handle, [ONE])
        client.register_system_shared_memory("numbers", f"{shared_memory_prefix}mp_{kind}", 64)
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_system_shared_memory("numbers", f"{shared_memory_prefix}mp_{kind}", 64)
        for pid in serving(server).values():
            status, regions = ask_process(pid, "GET", "/v2/systemsharedmemory/status")
            assert (status, [region["name"] for region in regions]) == (200, ["numbers"])
        for _ in range(MANY):
            each = _client(server, "http")
            given = tritonclient.http.InferInput("IN", [1], "INT32")
            given.set_shared_memory("numbers", 4)
            assert each.infer("identity_int32", [given]).as_numpy("OUT").tolist() == [1]
            each.close()
        client.unregister_system_shared_memory("numbers")
        for pid in serving(server).values():
            assert ask_process(pid, "GET", "/v2/systemsharedmemory/status") == (200, [])
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(handle)
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_trace_and_log_settings(server: ServerProcess, kind: str) -> None:
    client = _client(server, kind)
    rate = {"http": "7", "grpc": "8"}[kind]
    client.update_trace_settings(settings={"trace_rate": rate})
    client.update_log_settings({"log_verbose_level": int(rate)})
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/trace/setting")[1]["trace_rate"] == rate
        assert ask_process(pid, "GET", "/v2/logging")[1]["log_verbose_level"] == int(rate)
    client.update_trace_settings(settings={"trace_rate": None})
    client.update_log_settings({"log_verbose_level": 0})
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/trace/setting")[1]["trace_rate"] == "1000"
    with pytest.raises(InferenceServerException, match="trace_rate"):
        client.update_trace_settings(settings={"trace_rate": "often"})
    client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_is_the_same_everywhere_is_told_as_by_one_process(server: ServerProcess, kind: str) -> None:
    client = _client(server, kind)
    with pytest.raises(InferenceServerException) as raised:
        client.load_model("nowhere")
    assert raised.value.message().startswith("failed to load 'nowhere'")
    client.close()


def test_a_load_that_fails_in_one_process_is_undone_in_the_others(repository: Path, server: ServerProcess) -> None:
    status, answer = ask(server, "POST", "/v2/repository/models/first_only/load")
    assert status >= 400
    assert re.match(r"process [123] of 3: ", answer["error"]), answer
    assert re.search(r"; undone in process [123]$", answer["error"]), answer
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/models/first_only/ready")[0] == 400
    # A model that failed to load makes the server not ready, as with one process.
    wait_for(lambda: not is_ready(server))
    (repository / "repaired").touch()
    assert ask(server, "POST", "/v2/repository/models/first_only/load")[0] == 200
    wait_for(lambda: is_ready(server))
    infer_over_many_connections(server, "first_only")
    assert ask(server, "POST", "/v2/repository/models/first_only/unload")[0] == 200


def test_the_index_and_the_metadata(server: ServerProcess) -> None:
    rows = {row["name"]: row for row in ask(server, "POST", "/v2/repository/index")[1]}
    assert rows["identity_int32"]["state"] == "READY"
    assert rows["identity_int32"]["digest"].startswith("sha256:")
    ready = ask(server, "POST", "/v2/repository/index", {"ready": True})[1]
    assert {row["name"] for row in ready} == {"identity_int32", "add_sub"}
    client = _client(server, "grpc")
    assert {row.name for row in client.get_model_repository_index().models if row.state == "READY"} == {
        "identity_int32",
        "add_sub",
    }
    assert client.infer("identity_int32", identity_request(tritonclient.grpc)).as_numpy("OUT").tolist() == [1]
    client.close()


def _refused(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("isochrone")), "serve", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended
    return ended.stderr


def test_a_port_in_use(repository: Path, server: ServerProcess) -> None:
    """Even by a server whose processes share it: connections would go to either."""
    ports = ("--http-port", str(server.http_port), "--grpc-port", "0", "--metrics-port", "0")
    text = _refused(str(repository), "--processes", "2", "--host", "127.0.0.1", *ports)
    assert f"cannot listen on 127.0.0.1:{server.http_port} for http" in text
    assert "--http-port" in text


def test_a_fleet_wants_more_workers_instead(repository: Path, tmp_path: Path) -> None:
    text = _refused(
        *(str(repository), "--processes", "2", "--store", f"sqlite:{tmp_path / 'fleet.db'}"),
        *("--model-control-mode", "explicit"),
    )
    assert "--processes does not go with --store" in text
    assert "fleet file" in text


def test_models_that_cannot_be_loaded_end_the_server(tmp_path: Path) -> None:
    write_config(tmp_path / "models" / "broken", 'backend: "python"')
    (tmp_path / "models" / "broken" / "1").mkdir()
    (tmp_path / "models" / "broken" / "1" / "model.py").write_text("raise ValueError('on purpose')\n")
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    text = _refused(str(tmp_path / "models"), "--processes", "2", "--host", "127.0.0.1", "--log-json", *ports)
    assert "models failed to load: broken" in text
    assert json.dumps("a process cannot start; stopping") in text
