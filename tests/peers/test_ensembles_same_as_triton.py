"""Ensembles in real Triton, in our worker and behind our gateway: the same calls, the same answers.

Codes, outputs, parameters and the words that clients match are compared. Where ours differs on purpose, a table here
says how, and docs/protocol.md says why. The number of calls compared is written at the end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from asked_servers import Answer, Server

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from ensemble_calls import CALLS, MODELS, ROW, STREAMED, Call
from ensemble_repository import Ensemble, Model, Step, tensor, write_repository
from faulty_ensembles import CASES, STEPS
from gateway_process import StartGateway
from server_process import ServerProcess, StartServer

pytestmark = pytest.mark.peers

#: Calls whose code is ours alone: (ours, Triton's).
OTHER_CODES = {"an output that a step uses": (("200", "OK"), ("400", "INVALID_ARGUMENT"))}
#: Refusals in our own words. An unknown input is named; a required one that is missing is, too; no rows are no rows; a
#: model's failure has its line in place of Triton's traceback.
OTHER_WORDS = {
    "unknown input",
    "required left out",
    "no rows to a batch",
    "a batching step in no rows",
    "the output of the failing step",
    "all outputs, one failing",
    "a step fails",
    "a step of a step fails",
    "a failing step",
}


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Calls compared, by kind."""
    counted: Counter[str] = Counter()
    yield counted
    kinds = ", ".join(f"{count} {kind}" for kind, count in counted.items())
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        print(f"\nensembles: {counted.total()} calls compared with Triton ({kinds})")


@dataclass(frozen=True)
class Servers:
    theirs: Server
    ours: Server
    gateway: Server | None = None

    def all_of_ours(self) -> list[Server]:
        return [self.ours] if self.gateway is None else [self.ours, self.gateway]


def worker_of(server: ServerProcess) -> Server:
    return Server("worker", server.http_url, server.grpc_url)


@pytest.fixture(scope="module")
def servers(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    ours = write_repository(tmp_path_factory.mktemp("ours"), MODELS, "worker")
    with scratch("ensembles") as directory, server_factory(ours) as worker, gateway_factory([worker]) as gateway:
        theirs = write_repository(directory / "models", MODELS, "triton")
        with triton.serve_repository(theirs, environment_python(""), directory, tuple(MODELS)) as peer:
            http, grpc = str(peer.http_url).removeprefix("http://"), str(peer.grpc_address)
            yield Servers(
                Server("triton", http, grpc), worker_of(worker), Server("gateway", gateway.http_url, gateway.grpc_url)
            )


def words(error: str) -> str:
    """What an error says, without the id of the request and advice."""
    text = re.sub(r"\[request id: [^]]*\] ", "", error)
    return re.sub(r" Please provide all required input\(s\)\.$", "", text).rstrip(". ")


def check(name: str, ours: Answer, theirs: Answer) -> None:
    if name in OTHER_CODES:
        expected = OTHER_CODES[name]
        assert ours.code in expected[0]
        assert theirs.code in expected[1]
        return
    assert ours.code == theirs.code, (ours, theirs)
    assert (ours.outputs, ours.parameters, ours.identity) == (theirs.outputs, theirs.parameters, theirs.identity)
    if theirs.error and name not in OTHER_WORDS:
        assert words(theirs.error) in ours.error


@pytest.mark.parametrize("name", CALLS)
def test_unary_calls(servers: Servers, compared: Counter[str], name: str) -> None:
    call = CALLS[name]
    http, grpc = servers.theirs.over_http(call), servers.theirs.over_grpc(call)
    for server in servers.all_of_ours():
        check(name, server.over_http(call), http)
        check(name, server.over_grpc(call), grpc)
        compared[f"unary ({server.name})"] += 2


@pytest.mark.parametrize("transport", ["over_http", "over_grpc"])
@pytest.mark.parametrize("sequence_id", [7, "seven"])
def test_sequences(servers: Servers, compared: Counter[str], transport: str, sequence_id: int | str) -> None:
    calls = [
        Call("sequence", {"X": ROW}, parameters={"sequence_id": sequence_id, **flags})
        for flags in ({"sequence_start": True}, {}, {"sequence_end": True}, {})
    ]
    theirs = [getattr(servers.theirs, transport)(call) for call in calls]
    for server in servers.all_of_ours():
        for call, expected in zip(calls, theirs, strict=True):
            check("sequence", getattr(server, transport)(call), expected)
            compared[f"sequences ({server.name})"] += 1


@pytest.mark.parametrize("name", STREAMED)
def test_streams(servers: Servers, compared: Counter[str], name: str) -> None:
    call = STREAMED[name]
    for empty_final in (False, True):
        theirs = servers.theirs.streamed(call, empty_final)
        for server in servers.all_of_ours():
            ours = server.streamed(call, empty_final)
            assert len(ours) == len(theirs), (ours, theirs)
            for one, other in zip(ours, theirs, strict=True):
                check(name, one, other)
            compared[f"streams ({server.name})"] += 1


#: Errors of generate_stream are compared elsewhere, with those of all models.
GENERATED = [
    name for name, call in STREAMED.items() if not call.outputs and name not in ("a failing step", "a wrong shape")
]


@pytest.mark.parametrize("name", GENERATED)
def test_generate_stream(servers: Servers, compared: Counter[str], name: str) -> None:
    theirs = servers.theirs.generated(STREAMED[name])
    for server in servers.all_of_ours():
        assert server.generated(STREAMED[name]) == theirs
        compared[f"generate_stream ({server.name})"] += 1


@pytest.mark.parametrize("output", ["Y", "Z"])
def test_the_same_steps_run(servers: Servers, compared: Counter[str], output: str) -> None:
    """Those that no requested output needs do not."""
    call = CALLS["first output" if output == "Y" else "second output"]
    ran = []
    for server in (servers.theirs, servers.ours):
        before = {model: server.runs(model) for model in ("plain", "free")}
        assert server.over_http(call).code == "200"
        ran.append({model: server.runs(model) - count for model, count in before.items()})
    assert ran[0] == ran[1] == ({"plain": 2, "free": 0} if output == "Y" else {"plain": 1, "free": 1})
    compared["statistics"] += 1


def test_a_decoupled_step_shows_in_the_configuration(servers: Servers, compared: Counter[str]) -> None:
    for model in ("stream", "stream_then", "stream_nested", "two_steps"):
        texts = [server.request("GET", f"/v2/models/{model}/config")[1] for server in (servers.ours, servers.theirs)]
        assert len({'"decoupled":true' in text.replace(" ", "") for text in texts}) == 1, model
        compared["configurations"] += 1


# Loading.


def chain(*models: str) -> Ensemble:
    names = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps = [Step(model, {"IN": names[at]}, {"OUT": names[at + 1]}) for at, model in enumerate(models)]
    return Ensemble((tensor("X"),), (tensor("Y"),), tuple(steps))


def echo(*versions: int, policy: str = "") -> Model:
    more = f"version_policy {{ {policy} }}" if policy else ""
    return Model((tensor("IN"),), (tensor("OUT"),), versions=versions, more=more)


CONTROLLED: dict[str, Model | Ensemble] = {
    "first": echo(1),
    "second": echo(1),
    "both": chain("first", "second"),
    "alone": chain("second"),
    "outer": Ensemble((tensor("X"),), (tensor("Y"),), (Step("both", {"X": "X"}, {"Y": "Y"}),)),
    "waits": chain("first", "late"),
    "numbered": echo(1, 2, policy="all { }"),
    "fixed": Ensemble((tensor("X"),), (tensor("Y"),), (Step("numbered", {"IN": "X"}, {"OUT": "Y"}, 1),)),
    "some_versions": echo(1, 3, policy="specific { versions: [ 1, 7 ] }"),
    "no_versions": echo(1, 3, policy="specific { versions: [ 7 ] }"),
}
LATE: dict[str, Model | Ensemble] = {
    "late": echo(1),
    "numbered": echo(1, 2, policy="specific { versions: [ 2 ] }"),
}
WIDE = {"second": Model((tensor("IN", (5,)),), (tensor("OUT", (5,)),))}
NARROW = {"second": echo(1)}

#: What is done one after the other: a model to load or unload ("-"; "--": with its dependents), or models to write.
DONE: list[str | dict[str, Model | Ensemble]] = [
    *("both", "-first", "first", "-both", "-first", "-second"),
    *("both", "--both"),
    *("first", "both", "--both", "-first"),
    *("both", "alone", "--both", "--alone"),
    *("both", "--first", "--both"),
    *("outer", "-first", "first", "-first", "--outer", "-first"),
    *("waits", LATE, "late", "--waits", "-late", "-first"),
    *("both", "-first", "-both", "first", "-first", "-second"),
    *("fixed", "numbered", "-numbered", "--fixed"),
    *("both", WIDE, "second", NARROW, "second", WIDE, "both", NARROW, "both", "--both", "-second"),
    *("some_versions", "no_versions", "-some_versions"),
]


@dataclass(frozen=True)
class Pair:
    """Both servers in explicit mode, without a model, and their repositories."""

    ours: Server
    theirs: Server
    repositories: dict[str, Path]

    def write(self, models: dict[str, Model | Ensemble]) -> None:
        for server, repository in self.repositories.items():
            write_repository(repository, models, server)

    def control(self, call: str) -> list[tuple[int, str]]:
        """Status and text of both, ours first."""
        model, action = call.lstrip("-"), "unload" if call.startswith("-") else "load"
        body = {"parameters": {"unload_dependents": True}} if call.startswith("--") else {}
        path = f"/v2/repository/models/{model}/{action}"
        return [server.request("POST", path, body) for server in (self.ours, self.theirs)]


@pytest.fixture(scope="module")
def pair(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with scratch("explicit") as directory:
        repositories = {"worker": tmp_path_factory.mktemp("explicit"), "triton": directory / "models"}
        repositories["triton"].mkdir()
        flags = ("--model-control-mode=explicit", "--strict-readiness=false")
        python = environment_python("")
        with (
            server_factory(repositories["worker"], *flags[:1]) as worker,
            triton.serve_repository(repositories["triton"], python, directory, (), flags) as peer,
        ):
            http, grpc = str(peer.http_url).removeprefix("http://"), str(peer.grpc_address)
            found = Pair(worker_of(worker), Server("triton", http, grpc), repositories)
            found.write(STEPS | CONTROLLED)
            for name, case in CASES.items():
                found.write({name: case.ensemble, **case.others})
            yield found


def test_the_same_ensembles_are_refused(pair: Pair, compared: Counter[str]) -> None:
    wrong = {}
    for name, case in CASES.items():
        (status, ours), (their_status, theirs) = pair.control(name)
        compared["faulty or sound ensembles"] += 1
        as_expected = (status != 200, their_status != 200) == (bool(case.words), bool(case.their_words))
        if not as_expected or case.words not in _plain(ours) or case.their_words not in _plain(theirs):
            wrong[name] = (status, ours, their_status, theirs)
    assert wrong == {}
    for name in [*CASES, *STEPS]:
        pair.control(f"--{name}")


def _plain(text: str) -> str:
    return str(json.loads(text)["error"]) if text else ""


def test_models_come_and_go_together(pair: Pair, compared: Counter[str]) -> None:
    history = []
    for done in DONE:
        if not isinstance(done, str):
            pair.write(done)
            continue
        (status, ours), (their_status, theirs) = pair.control(done)
        history.append(done)
        assert status == their_status, (history, ours, theirs)
        if their_status != 200:
            assert words(_plain(theirs)).strip() in _plain(ours), history
        known = CONTROLLED.keys() | LATE.keys()
        served = [{each for each in server.ready() if each[0] in known} for server in (pair.ours, pair.theirs)]
        assert served[0] == served[1], history
        compared["loads and unloads"] += 1


def test_there_were_enough_of_them(compared: Counter[str]) -> None:
    assert compared.total() >= 300
