"""``isochrone infer`` against a real server, over both transports."""

from __future__ import annotations

import json
import runpy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gateway_process import GatewayProcess, StartGateway
from isochrone.cli.main import app
from server_process import ServerProcess, StartServer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def server(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("samples")
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](repository)
    with server_factory(repository) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(gateway_factory: StartGateway, server: ServerProcess) -> Iterator[GatewayProcess]:
    with gateway_factory([server]) as gateway:
        gateway.wait_workers(1)
        yield gateway


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    return f"http://{server.http_url}" if request.param == "http" else f"grpc://{server.grpc_url}"


def infer(url: str, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["infer", *arguments, "--url", url])


def test_random_input_prints_outputs_and_waterfall(url: str) -> None:
    result = infer(url, "detector", "--batch", "2")
    assert result.exit_code == 0, result.output
    assert "scores FP32 [2, 4]" in result.output
    for stage in ("network", "dispatch", "queue", "batch", "compute", "serialise", "total"):
        assert stage in result.output


def test_json_output_and_given_inputs(url: str, tmp_path: Path) -> None:
    pixels = np.arange(64, dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    result = infer(url, "preprocess", "--input", f"pixels=@{tmp_path / 'pixels.npy'}", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    [output] = printed["outputs"]
    assert (printed["version"], output["name"], output["datatype"], output["shape"]) == (
        "1",
        "features",
        "FP32",
        [1, 64],
    )
    np.testing.assert_allclose(output["data"], (pixels - 127.5) / 128, rtol=1e-6)
    stages = {key: value for key, value in printed["timing_ms"].items() if key != "total"}
    assert set(stages) == {"network", "dispatch", "queue", "batch", "compute", "serialise"}
    assert sum(stages.values()) == pytest.approx(printed["timing_ms"]["total"], abs=0.01)


def test_the_same_seed_gives_the_same_answer_over_both_transports(server: ServerProcess) -> None:
    answers = [
        json.loads(infer(url, "pipeline", "--seed", "3", "--json").output)["outputs"]
        for url in (f"http://{server.http_url}", f"grpc://{server.grpc_url}")
    ]
    assert answers[0] == answers[1]


def test_repeat_tells_percentiles(url: str) -> None:
    printed = json.loads(infer(url, "detector", "--repeat", "20", "--json").output)
    figures = list(printed["percentiles_ms"].values())
    assert printed["requests"] == 20
    assert figures == sorted(figures)
    assert "p99.9" in infer(url, "detector", "--repeat", "20").output


def test_a_sequence_by_parameters(url: str) -> None:
    number = "21" if url.startswith("http") else "22"
    steps = (("[0, 8]", "sequence_start=true", [0.0, 8.0]), ("[4, 0]", "sequence_end=true", [1.0, 6.0]))
    for given, mark, expected in steps:
        parameters = ("--parameter", f"sequence_id={number}", "--parameter", mark)
        result = infer(url, "tracker", "--input", f"measured={given}", *parameters, "--json")
        assert json.loads(result.output)["outputs"][0]["data"] == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "the server has detector, pipeline, preprocess, tracker"),
        (["detector", "--version", "9"], "version 9 is not found"),
        (["detector", "--input", "features=[1,2]"], "Expected [-1,64], got [1,2]"),
        (["detector", "--input", "feature=[1,2]"], "it has features"),
        (["detector", "--batch", "33"], "must be <= 32"),
        (["detector", "--batch", "2", "--input", "features=[1]"], "--batch is for random inputs"),
        (["detector", "--output", "nothing"], "nothing"),
        (["detector", "--timeout-ms", "0.001"], "Request timeout expired"),
        (["tracker"], "--parameter sequence_id=1"),
    ],
)
def test_failures_are_one_sentence_and_a_status(url: str, arguments: list[str], said: str) -> None:
    result = infer(url, *arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.startswith("isochrone infer: ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_server_says_how_to_start_one(scheme: str) -> None:
    with socket.socket() as held:
        # Bound but not listening: no other process can answer there.
        held.bind(("127.0.0.1", 0))
        result = infer(f"{scheme}://127.0.0.1:{held.getsockname()[1]}", "detector")
    assert result.exit_code == 1
    assert "isochrone serve MODELS" in result.output
    assert "--url" in result.output


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_token_that_no_header_can_carry_is_not_sent(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOCHRONE_API_TOKEN", "two words")
    result = infer(f"{scheme}://127.0.0.1:1", "m")
    assert result.exit_code == 1
    assert result.output.startswith(
        "isochrone infer: ISOCHRONE_API_TOKEN: expected ASCII characters without white space"
    )
    assert "two words" not in result.output


def test_a_server_of_another_kind_is_named(server: ServerProcess) -> None:
    result = infer(f"http://127.0.0.1:{server.metrics_port}", "detector")
    assert result.exit_code == 1
    assert "/metrics" in result.output


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_through_a_gateway_its_hop_is_a_stage_of_its_own(scheme: str, gateway: GatewayProcess) -> None:
    # More than one: the gateway remembers answers' heads, and must not answer from that with another's time.
    printed = json.loads(infer(f"{scheme}://{gateway.http_url}", "detector", "--json", "--repeat", "5").output)
    stages = {key: value for key, value in printed["timing_ms"].items() if key != "total"}
    assert list(stages) == ["network", "gateway", "dispatch", "queue", "batch", "compute", "serialise"]
    assert stages["gateway"] > 0.0
    shown = infer(f"{scheme}://{gateway.http_url}", "detector").output
    assert "the hop through it" in shown


def test_the_steps_of_an_ensemble_are_parts_of_its_compute(url: str) -> None:
    printed = json.loads(infer(url, "pipeline", "--json").output)["timing_ms"]
    assert list(printed)[-2:] == ["step1.preprocess", "step2.detector"]
    assert printed["step1.preprocess"] + printed["step2.detector"] <= printed["compute"] + 0.002
    shown = infer(url, "pipeline").output.splitlines()
    names = [line.split()[0] for line in shown if line.split()]
    assert names[names.index("compute") : names.index("compute") + 4] == [
        "compute",
        "preprocess",
        "detector",
        "serialise",
    ]
    assert "a step of it" in "".join(shown)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_models_that_are_not_ready_are_not_offered(scheme: str, server_factory: StartServer, tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](tmp_path)
    with server_factory(tmp_path, "--model-control-mode", "explicit", "--load-model", "detector") as server:
        said = infer(server.http_url if scheme == "http" else f"grpc://{server.grpc_url}", "nowhere").output
    assert said.endswith("; the server has detector\n")


@pytest.mark.parametrize("kind", ["gateway", "worker"])
def test_the_control_commands_say_what_they_were_pointed_at(
    kind: str, server: ServerProcess, gateway: GatewayProcess
) -> None:
    url = f"http://{gateway.http_url if kind == 'gateway' else server.http_url}"
    for words in (["status"], ["drain", "cpu-1"]):
        result = CliRunner().invoke(app, [*words, "--api", url])
        assert result.exit_code == 1
        what = "a gateway" if kind == "gateway" else "an inference server"
        assert (
            f"{url} is {what}; --api needs the address of a controller (http://127.0.0.1:8003 by default)"
            in result.output
        )
