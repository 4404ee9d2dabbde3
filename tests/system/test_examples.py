"""Every command and example of README and docs that needs no fleet, run as written.

The tests read the blocks from the markdown: ``sh`` blocks run; ``python`` blocks run or, if their first line names a
file, are written to a model repository with the ``pbtxt`` blocks, and served. ``test_fleet_examples`` runs the commands
that need a fleet, ``test_tutorial`` the tutorial, and ``tests/docs`` checks the pages without processes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development_ca import DevelopmentCa
from documented import EXAMPLES, ROOT, blocks, check_installable, curl, is_of_a_fleet, lines_of
from gateway_process import GatewayProcess, StartGateway, start_gateway
from server_process import ServerProcess, StartServer, start_server

_FILE = re.compile(r"# (\w+/(?:config\.pbtxt|\d+/model\.py))\n")
#: A module of the package, which a test in tests/docs loads.
_MODULE = re.compile(r"# src/isochrone/\S+\.py\n")
#: A script with this header needs a fleet; tests/in_process runs those that serve, and their clients.
_FLEET_HEADER = "x-isochrone-epoch"
_PYTHON_API = "import isochrone\n"
#: Parts of commands that take a while: a thousand workers, days of load, trained weights.
LONG = (
    "scenarios/scale.yaml",
    "simulate autoscaling",
    "simulate train",
    "prequal_figure6",
    "simulate placement",
    "isochrone profile",
)


def commands() -> list[tuple[str, str]]:
    """(page, command) for every line of every ``sh`` block that needs no fleet."""
    return [(page.name, line) for page, text in blocks("sh") if not is_of_a_fleet(text) for line in lines_of(text)]


#: Metrics of devices that no test machine needs, and of models that none of these servers has.
_ABSENT = (
    *("nv_gpu", "nv_energy", "isochrone_device", "isochrone_padded", "isochrone_captured", "isochrone_generation"),
    *("isochrone_activation_cache", "isochrone_division", "isochrone_trace", "isochrone_certificate"),
    "isochrone_access_log",
    "isochrone_gateway",
)


def scripts() -> list[tuple[str, str]]:
    shown = [(page.name, text) for page, text in blocks("python") if not _FILE.match(text) and not _MODULE.match(text)]
    # tests/system/test_openai_clients.py runs those of openai, test_xds_grpc.py those of xDS; tests/gpu has a GPU;
    # test_parallel_documented.py has the model of parallel instances.
    elsewhere = (
        *(_FLEET_HEADER, _PYTHON_API, "import openai", "cuda_shared_memory", "xds:///"),
        "tensor_parallel_plan = ",
    )
    return [(page, text) for page, text in shown if not any(word in text for word in elsewhere)]


def documented_files() -> dict[str, str]:
    """Model files of the docs, by path."""
    shown = [text for language in ("pbtxt", "python") for _, text in blocks(language)]
    return {match[1]: text for text in shown if (match := _FILE.match(text))}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository: Path = tmp_path_factory.mktemp("samples") / "models"
    runpy.run_path(str(EXAMPLES / "build_models.py"))["build"](repository)
    return repository


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The development authority of docs/tls.md, with its certificates for servers."""
    made = DevelopmentCa(tmp_path_factory.mktemp("certificates") / "ca").issue("worker", "localhost", "127.0.0.1")
    return made.issue("gateway", "localhost", "127.0.0.1", client=True).directory


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the image pipeline."""
    repository: Path = tmp_path_factory.mktemp("pictures") / "image-models"
    runpy.run_path(str(EXAMPLES / "image_pipeline" / "picture_models.py"))["build"](repository)
    return repository


@pytest.fixture(scope="module")
def server(
    server_factory: StartServer, samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The sample models and those of the docs."""
    documented = tmp_path_factory.mktemp("documented") / "models"
    for name, text in documented_files().items():
        path = documented / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # With a cache, so that every metric that the docs name is there.
    flags = ("--model-repository", str(documented), "--cache-config", "local,size=1048576")
    with server_factory(samples, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(gateway_factory: StartGateway, server: ServerProcess) -> Iterator[GatewayProcess]:
    """A gateway in front of that server, which replaces both workers of the docs."""
    with gateway_factory([server]) as gateway:
        yield gateway


def at(server: ServerProcess, text: str, gateway: GatewayProcess | None = None) -> str:
    """The text with the ports of the test's server and gateway."""
    ports = {"8000": server.http_port, "8001": server.grpc_port, "8002": server.metrics_port, "8010": server.http_port}
    if gateway is not None:
        ports |= {"9000": gateway.http_port, "9002": gateway.metrics_port}
    text = re.sub(r"(?<=grpc=|rics=)(\d+)", lambda match: str(ports[match[1]]), text)
    return re.sub(r"localhost:(\d+)", lambda match: f"127.0.0.1:{ports[match[1]]}", text)


def without_ports(words: list[str]) -> list[str]:
    """The words without options for ports: tests use free ports."""
    kept = iter(words)
    return [word for word in kept if not (re.fullmatch(r"--(\w+-port|listen)", word) and next(kept))]


def shell(command: str, **places: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **places}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


# The docs.


def test_the_docs_have_something_to_run() -> None:
    pages = {page for page, _ in commands()}
    assert {"README.md", "serving.md", "python-models.md", "protocol.md", "metrics.md", "gateway.md"} <= pages
    assert len(documented_files()) >= 8


def commands_to_run() -> list[Any]:
    """Each once, where pages have the same one, ports aside."""
    once = {tuple(without_ports(shlex.split(line, comments=True))): (page, line) for page, line in reversed(commands())}
    return [
        pytest.param(page, line, marks=[pytest.mark.long] if any(part in line for part in LONG) else [])
        for page, line in reversed(once.values())
    ]


@pytest.mark.parametrize(("page", "command"), commands_to_run())
def test_a_command_of_the_docs(
    page: str,
    command: str,
    server: ServerProcess,
    gateway: GatewayProcess,
    samples: Path,
    pictures: Path,
    certificates: Path,
) -> None:
    # The authority of docs/tls.md.
    command = re.sub(r"(?<= )ca(?=[ /]|$)", str(certificates), command)
    words = shlex.split(command, comments=True)
    match words[:2]:
        case ["make", target]:
            # "make test" cannot run itself; the demos have their own tests.
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["pip", "install"]:
            check_installable(command)
        case ["isochrone", "serve"]:
            places = {"examples/models": samples, "image-models": pictures}
            repository = places.get(words[2]) or Path(words[2])
            options = without_ports(words[3:])
            with start_server(repository, *options, log_path=samples.parent / "documented.log") as other:
                assert other.http_port
        case ["isochrone", "certs"]:
            if words[2] == "init":
                command = command.replace(str(certificates), f"{certificates}-new")
            result = shell(command)
            assert result.returncode == 0, result.stderr
            assert result.stdout
        case ["isochrone", "gateway"] if "--upstream-ca" in words:
            files = certificates / "worker"
            secured = ("--tls-cert", str(files / "tls.crt"), "--tls-key", str(files / "tls.key"))
            log = samples.parent / "documented.log"
            with start_server(
                samples, *secured, "--tls-client-ca", str(certificates / "ca.crt"), log_path=log
            ) as other:
                options = without_ports(words[2:])
                options[options.index("--upstream") + 1] = f"localhost:{other.http_port}"
                with start_gateway([], *options, log_path=log.with_suffix(".gateway")) as other_gateway:
                    other_gateway.wait_workers(1)
        case ["isochrone", "gateway"]:
            options = without_ports(shlex.split(at(server, command), comments=True)[2:])
            with start_gateway([], *options, log_path=samples.parent / "documented.log") as other_gateway:
                other_gateway.wait_workers(1)
        case ["curl", *_]:
            check_curl(shlex.split(at(server, command, gateway), comments=True)[1:])
        case ["isochrone", "infer"]:
            if "--url" not in words:
                command = command.replace(words[2], f"{words[2]} --url http://localhost:8000", 1)
            result = shell(at(server, command, gateway))
            assert result.returncode == 0, result.stdout + result.stderr
            assert result.stdout
        case ["isochrone", "profile"]:
            command = command.replace("examples/models", str(samples))
            result = shell(command.replace("detector.html", str(samples.parent / "detector.html")))
            assert result.returncode == 0, result.stderr
            assert "recommended" in result.stdout.lower()
        case ["isochrone", "auth"]:
            result = shell(command)
            assert result.returncode == 0, result.stderr
            assert "sha256" in result.stdout
        case ["isochrone", "login" | "logout"]:
            # Nobody is logged in, and there is no such provider: tests/peers/test_openid_provider.py has one.
            result = shell(command, XDG_CONFIG_HOME=str(samples.parent / "config"))
            assert result.returncode in (0, 1), result.stderr
            assert result.stdout.startswith("no login") or result.stderr.startswith("isochrone login: ")
        case ["isochrone", "doctor"]:
            # A test changes nothing of the machine, and what is found there is not the test's.
            assert "--fix" not in words
            result = shell(command)
            assert result.returncode in (0, 1), result.stderr
            assert result.stdout
        case ["isochrone", "render"]:
            out = samples.parent / "rendered"
            result = shell(re.sub(r"--out \S+", f"--out {shlex.quote(str(out))}", command))
            assert result.returncode == 0, result.stderr
            assert any(out.iterdir())
        case ["isochrone", "what-if"]:
            result = shell(f"{command} --seconds 0.1")
            assert result.returncode == 0, result.stderr
            assert result.stdout
        case ["isochrone", "simulate"] if words[2] == "train":
            # Training takes minutes and has its own tests: this test checks the options only.
            help_text = shell("isochrone simulate train --help").stdout
            assert all(word in help_text for word in words if word.startswith("--"))
        case ["isochrone", "simulate"] if words[2] == "placement":
            result = shell(command)
            assert result.returncode == 0, result.stderr
            assert "best-fit, repack" in result.stdout
        case ["isochrone", "simulate"] if words[2] == "autoscaling":
            result = shell(f"{command} --seeds 1")
            assert result.returncode == 0, result.stderr
            assert "worker-hours" in result.stdout
        case ["isochrone", "simulate"]:
            # Some of them run for minutes as written; here they run for a moment.
            command = command.replace("figure6.png", str(samples.parent / "figure6.png"))
            result = shell(f"{command} --seconds 0.05 --seeds 1")
            assert result.returncode == 0, result.stderr
            assert result.stdout
        case ["python", "examples/image_pipeline/picture_client.py"]:
            with start_server(pictures, log_path=pictures.parent / "documented.log") as other:
                result = shell(f"python {words[1]} --url {other.http_url}")
            assert result.returncode == 0, result.stderr
            assert result.stdout.startswith("red ")
        case ["python", "examples/image_pipeline/picture_models.py"]:
            result = shell(f"python {words[1]} {pictures}")
            assert result.returncode == 0, result.stderr
        case ["python", "examples/robot_fleet/fleet.py"]:
            result = shell(f"{command} --robots 2 --seconds 0.2")
            assert result.returncode == 0, result.stderr
            assert "2 robots, with a local controller" in result.stdout
        case ["python", script]:
            result = shell(f"python {script} {samples.parent / 'written'}")
            assert result.returncode == 0, result.stderr
        case _:
            pytest.fail(f"{page}: no rule to run {command!r}")


def check_curl(words: list[str]) -> None:
    status, headers, content, path, asked = curl(words)
    assert status == 200, content
    if "x-isochrone-timing" in asked:
        assert "compute;dur=" in (headers["server-timing"] or "")
    if "endpoint-load-metrics-format" in asked:
        assert "queue_depth" in (headers["endpoint-load-metrics"] or "")
    if "x-isochrone-explain" in asked:
        assert json.loads(headers["x-isochrone-placement"] or "")["candidates"]
    if "x-isochrone-per-worker" in asked:
        assert json.loads(content)["workers"]
    if path.endswith("generate_stream"):
        assert content.count(b"data: ") == 4


@pytest.mark.parametrize(("page", "script"), scripts())
def test_a_script_of_the_docs(page: str, script: str, server: ServerProcess) -> None:
    result = subprocess.run(
        [sys.executable, "-c", at(server, script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, f"{page}: {result.stderr}"
    assert result.stdout.startswith("[[")


def test_every_documented_model_answers(server: ServerProcess) -> None:
    names = {Path(name).parts[0] for name in documented_files()}
    for name in sorted(names - {"countdown"}):
        result = shell(f"isochrone infer {name} --batch 2 --url http://{server.http_url}")
        assert result.returncode == 0, result.stderr


def test_the_docs_name_real_metrics(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    # tests/multiprocess looks for those of several processes.
    text = (ROOT / "docs" / "metrics.md").read_text().partition("\n## Several processes")[0]
    for name in re.findall(r"`((?:nv|isochrone)_[a-z_]+)", text):
        # Without a GPU its metrics are not there, nor those of an activation cache or of a
        # divided model without such a model:
        # tests/observe has them, and tests/worker/generation those of text.
        if not name.startswith(_ABSENT) and not name.endswith("_"):
            assert re.search(rf"^# TYPE {name.removesuffix('_total')}(_total)? ", page, re.MULTILINE), name


def test_the_gateways_page_names_real_metrics(gateway: GatewayProcess) -> None:
    shell(f"isochrone infer detector --url http://{gateway.http_url}")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.metrics_port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    shown = set(re.findall(r"^# TYPE (isochrone_gateway_\w+) ", page, re.MULTILINE))
    named = set(re.findall(r"`(isochrone_gateway_[a-z_]+)", (ROOT / "docs" / "gateway.md").read_text()))
    # Of those that a gateway without a fleet does not have, tests/docs knows.
    assert len(shown) > 30
    assert {name for name in shown if not name.endswith("_created")} <= named


# The samples.


def test_the_samples_are_the_same_every_time_and_left_alone_when_right(samples: Path, tmp_path: Path) -> None:
    build = runpy.run_path(str(EXAMPLES / "build_models.py"))["build"]
    assert build(tmp_path / "again") == 8
    for path in samples.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert (tmp_path / "again" / path.relative_to(samples)).read_bytes() == path.read_bytes()
    assert build(tmp_path / "again") == 0
    (tmp_path / "again" / "detector" / "labels.txt").write_text("wrong")
    assert build(tmp_path / "again") == 1
