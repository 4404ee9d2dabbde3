"""Secrets of a controller, of a store that cannot be reached, in exported traces, and in what a crash leaves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from attacked_controller import attacked_controller
from guarded_servers import ask, inference, write_access

from isochrone.control.api.routes import OPERATIONS
from otlp_receiver import receiving
from sample_models import write_models, write_python
from server_process import StartServer
from up_process import ISOCHRONE, SECONDS
from watching import wait_for

PASSWORD = "store-pass/word 3456"
FLEET = """
name: plant
repository: models
store: {url: "etcd:http://root:store-pass%2Fword%203456@127.0.0.1:1"}
models: {identity_fp32: {version: 1}}
"""


def search(said: Mapping[str, bytes], secrets: list[str], tried: Counter[str]) -> None:
    """Every form of every secret in every output."""
    for place, text in said.items():
        for secret in secrets:
            for form in {secret, quote(secret), quote(secret, safe=""), secret[:20]}:
                found = text.find(form.encode())
                assert found < 0, (place, text[max(0, found - 200) : found + 100])
                tried["secrets searched for in outputs → not found"] += 1


@pytest.mark.parametrize("with_access", [True, False], ids=["access file", "token file"])
def test_a_controller(tmp_path: Path, tried: Counter[str], with_access: bool) -> None:
    tokens = write_access(tmp_path / "access.yaml")
    write_models(tmp_path / "models", "identity_fp32")
    token, audit_key = tokens["admin"], "audit-key-0123456789abcdef0123456789abcdef"
    (tmp_path / "token").write_text(token)
    (tmp_path / "audit.key").write_text(audit_key)
    rights = ("--access", str(tmp_path / "access.yaml")) if with_access else ("--token-file", str(tmp_path / "token"))
    audit = ("--audit", str(tmp_path / "audit"), "--audit-key", str(tmp_path / "audit.key"))
    said: dict[str, bytes] = {}
    with attacked_controller(tmp_path, *rights, *audit) as controller:
        port = controller.ports["control"]
        body = {"text": FLEET, "directory": str(tmp_path)}
        for name in ("admin", "caller", "expired", "revoked", "nothing", "unknown"):
            value = tokens.get(name, "iso_unknown-token-7890")
            for given in (f"Bearer {value}", f"Basic {value}", f"bearer  {value}"):
                headers = {"authorization": given, "cookie": f"isochrone_session={value}"}
                for each in OPERATIONS:
                    if each.streams or "{" in each.path:
                        continue
                    sent = body if each.path == "/v1/fleet" and each.method == "PUT" else {}
                    status, fields, answer = ask(
                        port, each.method, each.path, headers, None if each.method == "GET" else sent
                    )
                    said[f"{each.method} {each.path} {name} {given[:6]}"] = repr((status, fields)).encode() + answer
        administrator = {"authorization": f"Bearer {token}"}
        applied = ask(port, "GET", "/v1/fleet", administrator)
        said["the applied fleet"] = applied[2]
        assert applied[0] == 200, said["PUT /v1/fleet admin Bearer"]
        environment = {**os.environ, "ISOCHRONE_API_TOKEN": token}
        for words in (("status", "--json"), ("status",), ("events",), ("top", "--once")):
            ended = subprocess.run(
                [*ISOCHRONE, *words, "--api", f"http://127.0.0.1:{port}"],
                env=environment,
                capture_output=True,
                timeout=SECONDS,
            )
            said[f"isochrone {words}"] = ended.stdout + ended.stderr
        assert b"plant" in said["isochrone ('status', '--json')"] or b"models" in said["isochrone ('status', '--json')"]
        for file in ("cmdline", "environ"):
            said[file] = Path(f"/proc/{controller.process.pid}/{file}").read_bytes()
    said["log"] = controller.log.read_bytes()
    said |= {str(path): path.read_bytes() for path in (tmp_path / "audit").rglob("*") if path.is_file()}
    said |= {str(path): path.read_bytes() for path in tmp_path.glob("fleet.db*")}
    search(said, [*tokens.values(), audit_key, PASSWORD, "iso_unknown-token-7890"], tried)


@contextmanager
def running(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen([*ISOCHRONE, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)


def test_a_store_that_cannot_be_reached(tmp_path: Path, tried: Counter[str]) -> None:
    """Its URL has a password; the message that it is away has none, as JSON and as text."""
    url = f"etcd:http://root:{quote(PASSWORD, safe='')}@127.0.0.1:1,http://127.0.0.1:2"
    said = {}
    for number, form in enumerate(("--log-json", "--no-log-json")):
        log = tmp_path / f"{number}.log"
        with running(log, "control", "--store", url, "--fleet", "plant", "--listen", "127.0.0.1:0", form) as process:
            wait_for(lambda at=log: b"waiting for the store" in at.read_bytes())
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        said[form] = log.read_bytes()
    for wrong in (f"{url}?secret={quote(PASSWORD)}", url.replace("2", "x"), url.replace("http:", "ftp:"), f"{url}\n"):
        ended = subprocess.run(
            [*ISOCHRONE, "control", "--store", wrong, "--fleet", "plant"], capture_output=True, timeout=SECONDS
        )
        assert ended.returncode == 1, ended.stderr
        assert b"Traceback" not in ended.stderr
        said[f"a wrong URL, {len(said)}"] = ended.stdout + ended.stderr
    search(said, [PASSWORD], tried)


def test_traces_and_what_a_crash_leaves(tmp_path: Path, server_factory: StartServer, tried: Counter[str]) -> None:
    """The text of a fault, of a model's process and of the worker, names lines and no values."""
    tokens = write_access(tmp_path / "access.yaml")
    models = write_models(tmp_path / "models", "identity_fp32", "identity_int32")
    write_python(
        models / "identity_int32", "class Model:\n    def infer(self, inputs):\n        return {'OUT': inputs['IN']}\n"
    )
    with (models / "identity_int32" / "config.pbtxt").open("a") as file:
        file.write('parameters { key: "isolation" value { string_value: "process" } }\n')
    said: dict[str, bytes] = {}
    with receiving("grpc") as receiver:
        rate = ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")
        flags = ("--access", str(tmp_path / "access.yaml"), *receiver.flags, *rate)
        with server_factory(models, *flags, check_exit=False) as server:
            for name in ("admin", "expired", "unknown"):
                value = tokens.get(name, "iso_unknown-token-7890")
                headers = {
                    "authorization": f"Bearer {value}",
                    "cookie": value,
                    "x-isochrone-control": value,
                    "baggage": f"secret={value}",
                    "tracestate": f"secret={value}",
                }
                for model, datatype in (("identity_fp32", "FP32"), ("identity_int32", "INT32")):
                    path = f"/v2/models/{model}/infer?token={value}"
                    ask(server.http_port, "POST", path, headers, inference(datatype))
            receiver.wait_for(lambda spans: len(spans) >= 2)
            said["spans"] = repr(receiver.spans).encode() + repr(receiver.resources).encode()
            children = psutil.Process(server.pid).children(recursive=True)
            assert children, "a python model has a process of its own"
            for child in children:
                child.send_signal(signal.SIGABRT)
            wait_for(lambda: "Fatal Python error: Aborted" in server.log_text())
            psutil.wait_procs(children, timeout=60)
            server.process.send_signal(signal.SIGABRT)
            server.process.wait(60)
            said["log"] = server.log_path.read_bytes()
    search(said, [*tokens.values(), "iso_unknown-token-7890"], tried)
