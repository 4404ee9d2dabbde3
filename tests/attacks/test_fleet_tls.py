"""Every listener of a fleet with certificates, against clients that must not get through; and what works over TLS."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from development_ca import DevelopmentCa
from secure_fleet import MODEL, Callers, SecureFleet, request
from watching import wait_for


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = SecureFleet(folder)
    fleet.write()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "xdg"))
        with fleet.run():
            yield fleet


def listeners(fleet: SecureFleet) -> dict[str, tuple[int, bool]]:
    """By name: the port, and whether it asks for a certificate."""
    found = {"the control API": (fleet.control, False)}
    for number in range(fleet.gateways):
        found[f"gateway {number}"] = (fleet.front + number, False)
        found[f"metrics of gateway {number}"] = (fleet.pages + number, True)
    for number in range(fleet.workers):
        first = fleet.first_worker + 3 * number
        for offset, name in enumerate(("HTTP", "gRPC", "metrics")):
            found[f"{name} of worker {number}"] = (first + offset, True)
    return found


def refused(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> str:
    """Why a client gets no answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            end = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            with end:
                end.sendall(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                said = b""
                while part := end.recv(65536):
                    said += part
    except ssl.SSLError as error:
        return str(error)
    except ConnectionError as error:
        return str(error)
    assert not said.startswith(b"HTTP/"), said[:200]
    return "closed"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_every_listener_refuses_other_clients(fleet: SecureFleet, tmp_path: Path, tried: Counter[str]) -> None:
    foreign = DevelopmentCa(tmp_path / "foreign").issue("fleet", "127.0.0.1", client=True, uri="spiffe://plant/fleet")
    own = fleet.ca
    own.issue("late", client=True, expired=True, uri="spiffe://plant/fleet")
    for name, (port, is_mutual) in listeners(fleet).items():
        assert refused(port, None), name
        tried["plain connections to a fleet with TLS"] += 1
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            old = own.context("fleet")
            old.set_ciphers("DEFAULT:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = version
            assert refused(port, old), name
            tried["a downgrade to TLS 1.0 or 1.1"] += 1
        # The client must refuse this server: another authority, another host.
        assert "certificate verify failed" in refused(port, foreign.context("fleet")), name
        assert "mismatch" in refused(port, own.context("fleet"), "elsewhere.example"), name
        tried["a fleet's server that the client must refuse"] += 2
        if not is_mutual:
            continue
        assert "certificate required" in refused(port, own.context()), name
        tried["no certificate, where a fleet's processes listen"] += 1
        impostor = own.context()
        impostor.load_cert_chain(*foreign.pair("fleet"))
        assert refused(port, impostor) != "", name
        expired = own.context("late")
        assert "expired" in refused(port, expired), name
        tried["a foreign or expired certificate, where a fleet's processes listen"] += 2


def test_everything_of_a_fleet_works(fleet: SecureFleet) -> None:
    own = fleet.ca.context("fleet")
    for number in range(fleet.gateways):
        assert request(fleet.front + number, own)[0] == 200
    for words in ("status", "rollout list", "slo", "events"):
        code, said = fleet.command(*words.split())
        assert code == 0, said
    code, said = fleet.command("status", "--json")
    status = json.loads(said)
    assert [each["tls"] for each in (*status["workers"], *status["gateways"])] == [True] * 4
    code, said = fleet.command("infer", "identity_fp32")
    assert code == 0, said
    # Figures of processes, which the command reads itself.
    with subprocess.Popen(
        [sys.executable, "-m", "isochrone", "top", "--json"], stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        sample = json.loads(top.stdout.readline())
        top.kill()
    assert set(sample["workers"]) == {"cpu-1", "cpu-2"}, sample
    # Controllers read gateways' pages, and flight records of gateways and workers.
    answered = fleet.command("infer", "identity_fp32", "--parameter", "triton_enable_empty_final_response=false")
    assert answered[0] == 0
    code, said = fleet.command("why", "no-such-request")
    assert "no process remembers" in said, said
    assert "not asked" not in said, said
    targets = json.loads(request(fleet.control, own, "/v1/scrape-targets", None)[1])
    assert {each["labels"]["__scheme__"] for each in targets} == {"https"}


def test_a_rollout_with_comparison_works(fleet: SecureFleet) -> None:
    """The leader samples requests at gateways and replays them at a worker, which takes calls over TLS alone."""
    folder, written = fleet.directory / "models" / MODEL, fleet.file.read_text()
    copytree(folder / "1", folder / "2")
    rollout = "rollout: {compare: {samples: 5, timeout: 60s}}"
    fleet.file.write_text(written.replace("{version: 1}", f"{{version: 1, {rollout}}}"))
    fleet.apply()
    ports = [fleet.front + number for number in range(fleet.gateways)]
    with Callers(ports, fleet.ca.context()) as callers:
        code, said = fleet.command("rollout", "start", f"{MODEL}=2", "--wait")
        assert code == 0, said
    assert callers.failed == []
    code, said = fleet.command("rollout", "list", "--json")
    assert "5 requests" in said, said


def test_commands_say_what_they_lack(fleet: SecureFleet, tmp_path: Path) -> None:
    api = ("--api", f"https://127.0.0.1:{fleet.control}")
    elsewhere = str(tmp_path)
    code, said = fleet.command("status", *api, XDG_STATE_HOME=elsewhere)
    assert code == 1
    assert "ISOCHRONE_API_CA" in said
    code, said = fleet.command("status", "--api", f"http://127.0.0.1:{fleet.control}")
    assert code == 1
    assert "https://" in said
    code, said = fleet.command("status", *api, XDG_STATE_HOME=elsewhere, ISOCHRONE_API_CA=str(fleet.ca.ca))
    assert code == 0, said


def test_a_worker_with_a_foreign_certificate_gets_nothing(fleet: SecureFleet, tmp_path: Path) -> None:
    foreign = DevelopmentCa(tmp_path / "foreign").issue("worker", "127.0.0.1", uri="spiffe://plant/fleet")
    store = f"sqlite:{fleet.directory}/state/fleet.db"
    for number, flags in enumerate((foreign.server_flags("worker"), [])):
        name = f"stranger-{number}"
        words = ["serve", str(fleet.directory / "models"), "--host", "127.0.0.1", "--model-control-mode", "explicit"]
        words += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--store", store, "--fleet", "secure"]
        with subprocess.Popen(
            [sys.executable, "-m", "isochrone", *words, "--name", name, "--pool", "cpu", *flags],
            stderr=subprocess.DEVNULL,
        ) as stranger:
            try:
                said = "certificate verify failed" if flags else "speaks plain HTTP"

                def is_refused() -> bool:
                    status = json.loads(fleet.command("status", "--json")[1])
                    return any(each["name"] == name and said in each["fault"] for each in status["workers"])  # noqa: B023

                wait_for(is_refused)
            finally:
                stranger.terminate()
    assert "certificate verify failed" in fleet.log("front-1")


def test_certificates_and_the_authority_change_under_load(fleet: SecureFleet, tmp_path: Path) -> None:
    ports = [fleet.front + number for number in range(fleet.gateways)]
    # Trusts both authorities from the first step on, as every caller that was given the bundle in time.
    context = ssl.create_default_context(cafile=str(fleet.ca.ca))
    names = [f"front-{number + 1}" for number in range(fleet.gateways)] + ["cpu-1", "cpu-2", "control-1"]
    with Callers(ports, context) as callers:
        for step in range(4):
            before = {name: fleet.log(name).count("loaded again") for name in names}
            code, said = fleet.command("certs", "rotate", str(fleet.ca.directory), *(["--ca"] if step else []))
            assert code == 0, said
            if step == 1:
                context.load_verify_locations(fleet.ca.ca)
            wait_for(lambda: all(fleet.log(name).count("loaded again") > before[name] for name in names))  # noqa: B023
            callers.wait(20)
            assert fleet.command("status")[0] == 0
    assert callers.failed == []
