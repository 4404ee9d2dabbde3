"""Every port of a fleet with a key asks every caller by the same rules: gateways, workers, metrics, the control API."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from guarded_fleet import INFER, GuardedFleet, guarded_fleet
from guarded_servers import ask, inference

from development_ca import DevelopmentCa
from gateway_process import StartGateway
from isochrone.gateway.figures.page import FIGURES_PATH
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.fleet_key import FleetKey
from watching import wait_for

ON_BEHALF = "x-isochrone-on-behalf-of"
INDEX = "/v2/repository/index"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedFleet]:
    with guarded_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running
        # No token, and nothing that is made of the key, in any log.
        secret = (*running.tokens.values(), running.internal.controller_token, running.internal.gateway_token)
        assert not any(token in running.logs() for token in secret)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_workers_and_gateways_decide_alike(fleet: GuardedFleet, tried: Counter[str]) -> None:
    # Each port of a worker speaks both protocols.
    for port in (fleet.gateway, *fleet.workers, *(port + 1 for port in fleet.workers)):
        assert ask(port, "POST", INFER, fleet.credential("caller"), inference())[0] == 200, port
        for caller, status in (("", 401), ("expired", 401), ("revoked", 401), ("reader", 403), ("nothing", 403)):
            assert ask(port, "POST", INFER, fleet.credential(caller), inference())[0] == status, (port, caller)
            tried["a fleet's workers and gateways without the right"] += 1
        for path in ("/v2/health/ready", "/v2/health/live"):
            assert ask(port, "GET", path)[0] == 200


def test_models_and_priorities_hold_at_the_worker(fleet: GuardedFleet, tried: Counter[str]) -> None:
    limited = fleet.credential("limited")
    for port in (fleet.gateway, *fleet.workers):
        assert ask(port, "POST", INFER, limited, inference(priority=2))[0] == 200
        for path, body in (
            (INFER, inference(priority=1)),
            (INFER.replace("fp32", "int32"), inference("INT32")),
        ):
            assert ask(port, "POST", path, limited, body)[0] == 403, (port, path)
            tried["a model or priority that the role does not have, in a fleet"] += 1


def test_metrics_ports_ask_every_caller(fleet: GuardedFleet, tried: Counter[str]) -> None:
    pages = ["/metrics", "/v1/flights/x"]
    of_gateway = [*pages, FIGURES_PATH, "/evaluations", "/samples/identity_fp32"]
    for port in (fleet.gateway_metrics, *fleet.worker_metrics):
        for path in of_gateway if port == fleet.gateway_metrics else pages:
            for caller, status in (("", 401), ("revoked", 401), ("caller", 403), ("nothing", 403)):
                assert ask(port, "GET", path, fleet.credential(caller))[0] == status, (port, path, caller)
                tried["metrics ports of a fleet"] += 1
        assert ask(port, "GET", "/metrics", fleet.credential("reader"))[0] == 200
        assert ask(port, "GET", "/v1/flights/x", fleet.credential("reader"))[0] in (200, 404)
        # A gateway's own token is for metrics, not for what was recorded.
        assert ask(port, "GET", "/v1/flights/x", bearer(fleet.internal.gateway_token))[0] == 403


def test_the_fleets_own_tokens_open_no_more_than_they_must(fleet: GuardedFleet, tried: Counter[str]) -> None:
    gateway, controller = bearer(fleet.internal.gateway_token), bearer(fleet.internal.controller_token)
    load, body = "/v2/repository/models/identity_fp32/unload", {"parameters": {}}
    for port in fleet.workers:
        assert ask(port, "POST", INDEX, gateway, {})[0] == 200
        assert ask(port, "POST", INDEX, controller, {})[0] == 200
        for headers, method, path, sent in (
            (gateway, "POST", INFER, inference()),
            (gateway, "POST", load, body),
            (gateway, "GET", "/v2/trace/setting", None),
            (gateway, "GET", "/v2/systemsharedmemory/status", None),
            # A change needs the worker's own token beside it, which is in its record of the store.
            (controller, "POST", load, body),
            (controller, "GET", "/v2/systemsharedmemory/status", None),
            ({**controller, "x-isochrone-control": secrets.token_urlsafe(32)}, "POST", load, body),
            (fleet.credential("admin"), "POST", load, body),
        ):
            assert ask(port, method, path, headers, sent)[0] == 403, (headers, path)
            tried["tokens of the fleet, and an administrator's, beyond their right"] += 1
        assert ask(port, "POST", INFER, fleet.credential("caller"), inference())[0] == 200
    for words in ("status", "drain cpu-1"):
        # They are for processes: the control API is for people and programs of the access file.
        assert fleet.command("", *words.split())[0] != 0
    assert ask(fleet.control, "GET", "/v1/status", gateway)[0] == 403
    assert ask(fleet.control, "GET", "/v1/status", controller)[0] == 403


def test_guessed_internal_tokens(fleet: GuardedFleet, tried: Counter[str]) -> None:
    other = InternalCallers(FleetKey(b"another fleet's key"))
    real = fleet.internal.controller_token
    flipped = real[:-1] + ("0" if real[-1] != "0" else "1")
    purposes = ("", "controller", "calls of controller", "calls of controllers ", "store records")
    guesses = [
        other.controller_token,
        other.gateway_token,
        flipped,
        real.upper(),
        real[:32],
        real + "0",
        "fleet:controller",
        "fleet:gateway",
        secrets.token_hex(32),
        *(FleetKey(b"00112233445566778899aabbccddeeff").derived(purpose).hex() for purpose in purposes),
    ]
    for port in (fleet.gateway, *fleet.workers, fleet.gateway_metrics, *fleet.worker_metrics):
        path, method = (
            ("/metrics", "GET") if port in (fleet.gateway_metrics, *fleet.worker_metrics) else (INDEX, "POST")
        )
        for guess in guesses:
            assert ask(port, method, path, bearer(guess), {})[0] == 401, (port, guess)
            tried["guessed tokens of the fleet's own processes"] += 1


def test_nobody_calls_on_behalf_of_others(fleet: GuardedFleet, tried: Counter[str]) -> None:
    real = fleet.internal.attest(("spiffe://plant/robot",)).decode()
    other = InternalCallers(FleetKey(b"another fleet's key")).attest(("spiffe://plant/robot",)).decode()
    names, signature = real.rsplit(";", 1)
    forged = (
        other,
        names,
        f"{names};",
        f"{names};{signature[:-1]}",
        f"certificate:admin;{signature}",
        f"token:admin;{signature}",
        f"fleet:controller;{signature}",
        f"{names},certificate:admin;{signature}",
        f"anonymous;{signature}",
        "token:admin",
        "anonymous",
        ";",
        ",",
        "\xff;\xff",
    )
    for value in forged:
        for caller, at_gateway in (("", 401), ("nothing", 403), ("caller", 200)):
            headers = {**fleet.credential(caller), ON_BEHALF: value}
            for port in fleet.workers:
                assert ask(port, "POST", INFER, headers, inference())[0] == 401, (value, caller)
                tried["forged attestations about callers"] += 1
            # A gateway drops the header, and decides by the caller's own credential.
            assert ask(fleet.gateway, "POST", INFER, headers, inference())[0] == at_gateway, (value, caller)
    # Even a true one gives no more than the named caller has, goes with no credential, and not to a gateway.
    for port in fleet.workers:
        assert ask(port, "POST", INFER, {ON_BEHALF: real}, inference())[0] == 403
        assert ask(port, "POST", INFER, {ON_BEHALF: real, **fleet.credential("caller")}, inference())[0] == 401
    assert ask(fleet.gateway, "POST", INFER, {ON_BEHALF: real}, inference())[0] == 401


def test_commands_and_figures_work_with_the_right(fleet: GuardedFleet) -> None:
    path = fleet.credential("caller") | {"x-request-id": "asked-why"}
    assert ask(fleet.gateway, "POST", INFER, path, {**inference(), "id": "asked-why"})[0] == 200
    reader = "reader"
    code, text = fleet.command(reader, "why", "asked-why", "--json")
    assert code == 0, text
    assert "not asked" not in text, text
    roles = {page["role"] for page in json.loads(text)["records"]}
    assert roles == {"gateway", "worker"}, text
    code, text = fleet.command(reader, "top", "--count", "2", "--interval", "0.2", "--json")
    assert code == 0, text
    last = json.loads(text.splitlines()[-1])
    assert {name for name, each in last["workers"].items() if each["cpu"] is not None} == {"cpu-1", "cpu-2"}, last
    status, _, body = ask(fleet.control, "GET", "/v1/figures", fleet.credential(reader))
    assert status == 200
    assert [each["reachable"] for each in json.loads(body)["latest"]["gateways"]] == [True], body
    for words in ("status", "slo", "rollout list"):
        code, text = fleet.command(reader, *words.split())
        assert code == 0, (words, text)


def test_a_revoked_token_ends_on_open_connections(fleet: GuardedFleet, tried: Counter[str]) -> None:
    """Through the gateway, and on the worker's own port; and comes back with the file."""
    headers = {**fleet.credential("caller"), "content-type": "application/json"}
    body = json.dumps(inference()).encode()
    before = fleet.access.read_text()
    with (
        closing(http.client.HTTPConnection("127.0.0.1", fleet.gateway, timeout=60)) as through,
        closing(http.client.HTTPConnection("127.0.0.1", fleet.workers[0], timeout=60)) as directly,
    ):
        open_ones = (through, directly)

        def statuses() -> set[int]:
            found = set()
            for each in open_ones:
                each.request("POST", INFER, body, headers)
                answer = each.getresponse()
                answer.read()
                found.add(answer.status)
            return found

        assert statuses() == {200}
        sockets = [each.sock for each in open_ones]
        line = next(line for line in before.splitlines() if line.startswith("  caller: "))
        fleet.change(line, line.replace("}", ", revoked: true}"))
        wait_for(lambda: statuses() == {401})
        assert [each.sock for each in open_ones] == sockets, "the same connections"
        tried["a revoked token on open connections of a fleet"] += 2
        fleet.change("assign:", "assign: [")
        wait_for(lambda: "the access file cannot be read" in fleet.logs())
        assert statuses() == {401}, "a file with an error changes nothing"
        wait_for(lambda: "the access file of controller" in fleet.command("reader", "status")[1])
        shown = json.loads(fleet.command("reader", "status", "--json")[1])["access_fault"]
        assert f"{fleet.access}:" in shown["reason"]
        assert "access file is not used" in fleet.command("reader", "events")[1]
        fleet.access.with_suffix(".new").write_text(before)
        fleet.access.with_suffix(".new").replace(fleet.access)
        wait_for(lambda: statuses() == {200})
        wait_for(lambda: "the access file of controller" not in fleet.command("reader", "status")[1])
        assert "access file is used again" in fleet.command("reader", "events")[1]


def test_a_policy_written_while_no_controller_runs_counts_with_the_next(
    fleet: GuardedFleet, tried: Counter[str]
) -> None:
    headers = fleet.credential("caller")
    before = fleet.access.read_text()
    line = next(line for line in before.splitlines() if line.startswith("  caller: "))
    controller = fleet.process("control")
    controller.suspend()
    try:
        fleet.change(line, line.replace("}", ", revoked: true}"))
        # Nobody reads the file: the last rules hold, for good and bad callers.
        for port in (fleet.gateway, *fleet.workers):
            assert ask(port, "POST", INFER, headers, inference())[0] == 200
            assert ask(port, "POST", INFER, fleet.credential("revoked"), inference())[0] == 401
    finally:
        controller.kill()
    for port in (fleet.gateway, *fleet.workers):
        wait_for(lambda port=port: ask(port, "POST", INFER, headers, inference())[0] == 401)
        tried["a token that was revoked while no controller ran"] += 1
    # A copy that is older than the rules in force, as a machine may have it that was away, brings nothing back.
    old = fleet.access.with_suffix(".new")
    old.write_text(before)
    os.utime(old, (1_700_000_000, 1_700_000_000))
    old.replace(fleet.access)
    wait_for(lambda: "older than the rules in force" in fleet.logs())
    assert ask(fleet.gateway, "POST", INFER, headers, inference())[0] == 401
    fleet.access.touch()
    wait_for(lambda: ask(fleet.gateway, "POST", INFER, headers, inference())[0] == 200)


def test_callers_with_certificates_are_themselves_at_the_worker(
    fleet: GuardedFleet, tmp_path: Path, gateway_factory: StartGateway, tried: Counter[str]
) -> None:
    """They bring no token that a gateway could pass on: it names them to the worker, which decides."""
    ca = DevelopmentCa(tmp_path / "ca").issue("server", "localhost", "127.0.0.1")
    ca.issue("pilot", uri="spiffe://plant/pilot", client=True)
    ca.issue("cleaner", uri="spiffe://plant/cleaner", client=True)
    before = fleet.access.read_text()
    roles = "[{may: [inference, model-config, statistics], models: [identity_fp32]}]"
    given = "{to: ['certificate:spiffe://plant/pilot'], roles: [pilot]}"
    fleet.change("\nroles:\n", f"\nroles:\n  pilot: {roles}\n")
    fleet.change("\nassign:\n", f"\nassign:\n  - {given}\n")
    flags = ("--store", f"sqlite:{fleet.directory}/state/fleet.db", "--fleet", "guarded", "--name", "tls")
    flags += ("--fleet-key", str(fleet.directory / "fleet.key"), "--access", "@fleet", *ca.server_flags("server"))
    with gateway_factory([], *flags) as gateway:

        def status(name: str, method: str, path: str, body: object = None, **headers: str) -> int:
            context: ssl.SSLContext = ca.context(name)
            connection = http.client.HTTPSConnection("127.0.0.1", gateway.http_port, context=context, timeout=60)
            with closing(connection):
                connection.request(method, path, json.dumps(body) if body else None, headers)
                answer = connection.getresponse()
                answer.read()
                return answer.status

        of_model = "/v2/models/identity_fp32"
        wait_for(lambda: status("pilot", "POST", INFER, inference()) == 200)
        assert status("pilot", "GET", f"{of_model}/config") == 200
        assert status("pilot", "GET", f"{of_model}/stats") == 200
        for name, method, path, body in (
            ("cleaner", "POST", INFER, inference()),
            ("cleaner", "GET", f"{of_model}/config", None),
            ("cleaner", "GET", f"{of_model}/stats", None),
            ("pilot", "POST", INFER.replace("fp32", "int32"), inference("INT32")),
        ):
            assert status(name, method, path, body) == 403, (name, path)
            tried["a certificate without the right, through a fleet's gateway"] += 1
        # A token counts before the certificate, and cannot be hidden from the worker so that it counts here alone.
        hidden = {"connection": "authorization"}
        assert status("cleaner", "POST", INFER, inference(), **fleet.credential("caller"), **hidden) == 200
        assert status("pilot", "POST", INFER, inference(), **fleet.credential("nothing"), **hidden) == 403
        assert status("pilot", "POST", INFER, inference(), **fleet.credential("nothing")) == 403
        tried["a certificate without the right, through a fleet's gateway"] += 2
    fleet.access.with_suffix(".new").write_text(before)
    fleet.access.with_suffix(".new").replace(fleet.access)


def test_rollouts_with_comparison_and_canary_work(tmp_path: Path) -> None:
    """The leader samples requests at gateways, replays them at workers, and reads counts: each port checks it."""
    rollout = "compare: {samples: 5, timeout: 60s}, canary: {steps: [0.5], min_samples: 5, min_seconds: 0.1s}"
    models = f"{{identity_fp32: {{version: 1, rollout: {{{rollout}}}}}}}"
    with guarded_fleet(tmp_path, models) as fleet, closing(Traffic(fleet)):
        code, text = fleet.command("operator", "rollout", "start", "identity_fp32=2", "--wait")
        assert code == 0, text
        headers = fleet.credential("caller")
        answer = json.loads(ask(fleet.gateway, "POST", INFER, headers, inference())[2])
        assert answer["model_version"] == "2"
        state = json.loads(fleet.command("reader", "rollout", "list", "--json")[1])
        assert "5 requests" in str(state), state


class Traffic:
    """Requests of one caller, until it is closed."""

    def __init__(self, fleet: GuardedFleet) -> None:
        self._fleet = fleet
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            headers = {**self._fleet.credential("caller"), "x-agent-id": f"agent-{number % 20}"}
            ask(self._fleet.gateway, "POST", INFER, headers, inference())
