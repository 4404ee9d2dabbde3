"""Triton's python models in real Triton and in our worker: the same ``model.py``, the same answers.

The models are in ``python_models``. Only ``doubles`` differs: this Triton has the python backend alone, while our
worker serves an onnx model of that name, so that a call of a python model reaches another backend.

Where the answers differ, a table here says how. Cases in which Triton's server itself ends are left out: a model that
loads another under --model-control-mode=none, or asks for a version that is no number, now and then takes it down.

The number of calls compared is written at the end.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_servers import Answer, Server
from onnx import TensorProto, helper

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from ensemble_calls import Call
from sample_models import onnx_bytes
from server_process import ServerProcess, StartServer

pytestmark = pytest.mark.peers

REPOSITORY = Path(__file__).with_name("python_models")

#: Configurations of the model ``view`` besides its own: all of them reach ``initialize``.
VIEWS = {
    "view_plain": "",
    "view_groups": 'instance_group [ { count: 1 kind: KIND_CPU }, { name: "mine" count: 1 kind: KIND_CPU } ]',
    "view_several": "instance_group [ { count: 2 kind: KIND_CPU } ]",
    "view_scheduled": """
        dynamic_batching {
          preferred_batch_size: [ 2, 4 ]
          max_queue_delay_microseconds: 100
          priority_levels: 2
          default_priority_level: 1
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000000 max_queue_size: 9 }
          priority_queue_policy { key: 2 value { allow_timeout_override: true } }
        }
    """,
    "view_versions": "version_policy { specific { versions: [ 1 ] } }",
    "view_all_versions": "version_policy { all { } }",
    "view_more": """
        metric_tags { key: "team" value: "a" }
        response_cache { enable: false }
        optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } }
    """,
}
INSTANCES = {
    "view_groups": ("view_groups_0_0", "mine_0"),
    "view_several": ("view_several_0_0", "view_several_0_1"),
}
_VIEW_CONFIG = """backend: "python"
max_batch_size: {batch}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] {reshape} }} ]
output [
  {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "AFTER" data_type: TYPE_FP32 dims: [ -1 ] }}
]
"""

#: Cases of which the answers differ on purpose: (model, case) → (what Triton says, what we say).
DIFFERENCES: dict[tuple[str, str], tuple[str, str]] = {
    # Triton's line break is in the middle of its sentence.
    ("interface", "dlpack_of_no_tensor"): ("a DLPack capsule         or have", "a DLPack capsule or have"),
    # Triton reads memory that is not its own any more.
    ("interface", "dlpack_used_twice"): ("DLDevice type", "DLPack tensor cannot be read"),
    ("faults", "tensors"): ("'<class 'c_python_backend_utils.Tensor'>'", "'<class 'isochrone"),
    # We name the unknown input before we count.
    ("bls", "input_too_many"): ("expected 1 inputs but got 2 inputs", "unexpected inference input 'WRONG'"),
    # This release of Triton loses the code of a called model's error; later ones keep it, as we do.
    ("bls", "a_model_that_answers_an_error"): ('"NOT_FOUND it is", "code": 1', '"NOT_FOUND it is", "code": 2'),
}
#: Triton never answers these: a sender that is let go without the final flag, and errors in a called stream, with
#: which a caller that iterates waits for ever.
ONLY_OURS = {
    ("sender", "without_the_flag"): '"OUT"',
    ("bls", "stream_with_an_error"): '"error": "in the middle", "code": 4',
    ("bls", "stream_that_raises"): "ValueError: in the middle",
    ("bls", "stream_of_a_model_that_is_not_there"): "Model 'nobody' is not ready.",
    ("bls", "stream_with_a_wrong_input"): "unexpected inference input 'NO'",
}


def cases_of(model: str) -> list[str]:
    """The methods of the class ``Cases`` of a model."""
    source = (REPOSITORY / model / "1" / "model.py").read_text()
    body = source.split("\nclass Cases:")[1].split("\nclass ")[0].split("\nKEPT")[0]
    return re.findall(r"^    (?:async )?def (\w+)\(self", body, re.MULTILINE)


def write_repository(directory: Path, *, for_triton: bool) -> Path:
    shutil.copytree(REPOSITORY, directory, ignore=shutil.ignore_patterns("__pycache__"))
    for name, more in VIEWS.items():
        shutil.copytree(directory / "view", directory / name)
        batched = "dynamic_batching" in more
        config = _VIEW_CONFIG.format(
            batch=4 if batched else 0,
            dims="1" if batched else "-1",
            reshape="reshape { shape: [ ] }" if batched else "",
        )
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}{more}\n')
    if not for_triton:
        rows = ["batch", 3]
        data = onnx_bytes(
            [helper.make_node("Add", ["IN", "IN"], ["OUT"])],
            [("IN", TensorProto.FLOAT, rows)],
            [("OUT", TensorProto.FLOAT, rows)],
        )
        (directory / "doubles" / "1" / "model.py").unlink()
        (directory / "doubles" / "1" / "model.onnx").write_bytes(data)
        config_file = directory / "doubles" / "config.pbtxt"
        config_file.write_text(config_file.read_text().replace('"python"', '"onnxruntime"'))
    return directory


@dataclass(frozen=True)
class Servers:
    theirs: Server
    ours: Server
    their_log: Path
    worker: ServerProcess
    roots: tuple[Path, Path]

    def text(self, answer: Any) -> str:
        """An answer as text, without what differs between two directories."""
        text = str(answer)
        for root in self.roots:
            text = text.replace(str(root), "REPOSITORY")
        return text


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Calls compared, by kind."""
    counted: Counter[str] = Counter()
    yield counted
    kinds = ", ".join(f"{count} {kind}" for kind, count in counted.items())
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        print(f"\npython models: {counted.total()} calls compared with Triton ({kinds})")


@pytest.fixture(scope="module")
def servers(server_factory: StartServer) -> Iterator[Servers]:
    with scratch("python-models") as directory:
        theirs = write_repository(directory / "theirs", for_triton=True)
        ours = write_repository(directory / "ours", for_triton=False)
        with (
            server_factory(ours, "--log-verbose", "1") as worker,
            triton.serve_repository(theirs, environment_python(""), directory, (), ("--log-verbose=1",)) as peer,
        ):
            yield Servers(
                Server("triton", str(peer.http_url).removeprefix("http://"), str(peer.grpc_address)),
                Server("worker", worker.http_url, worker.grpc_url),
                peer.log,
                worker,
                (theirs, ours),
            )


def words(text: str) -> str:
    """What an error says, without the id of the request and advice."""
    text = re.sub(r"\[request id: [^]]*\] ", "", text)
    text = text.replace(" Please provide all required input(s).", "")
    text = re.sub(r"\. NOTE: Setting a non-zero max_batch_size .*? info on max_batch_size\.", "", text)
    text = re.sub(r"\. Expected one of \['[^]]*'\]", "", text)
    text = re.sub(r", got \d+\"", '"', text)
    return text.replace("'].\"", "']\"")


def said(answer: Answer) -> str:
    """The text that a model gave, or its error."""
    for name in ("TEXT", "SEEN"):
        if name in answer.outputs:
            data = answer.outputs[name][2]
            return str(data[0]) if isinstance(data, tuple) else data[4:].decode()
    return answer.error


def check(servers: Servers, ours: Answer, theirs: Answer, names: tuple[str, str] = ("", "")) -> None:
    assert ours.code == theirs.code, (ours, theirs)
    assert (ours.parameters, ours.identity) == (theirs.parameters, theirs.identity)
    our_text, their_text = words(servers.text(said(ours))), words(servers.text(said(theirs)))
    if names in DIFFERENCES:
        expected = DIFFERENCES[names]
        assert expected[0] in their_text
        assert expected[1] in our_text
    elif "\n\nAt:\n" in their_text and names[0] == "bls_async":
        # Of a coroutine Triton shows the innermost frame alone.
        assert our_text.startswith(their_text)
    else:
        assert our_text == their_text
    if not said(theirs):
        assert ours.outputs == theirs.outputs


def case_of(model: str, case: str, **inputs: Any) -> Call:
    return Call(model, {"CASE": np.array([case.encode()], np.object_), **inputs}, id="one")


_CASES = [(model, case) for model in ("interface", "sender", "faults", "bls", "bls_async") for case in cases_of(model)]


@pytest.mark.parametrize(("model", "case"), [each for each in _CASES if each not in ONLY_OURS])
def test_cases(servers: Servers, compared: Counter[str], model: str, case: str) -> None:
    codes = range(8) if case == "error_of_code" else range(1)
    for code in codes:
        call = case_of(model, case, **({"CODE": np.array([code], np.int32)} if len(codes) > 1 else {}))
        for transport in ("over_http", "over_grpc"):
            theirs, ours = (getattr(server, transport)(call) for server in (servers.theirs, servers.ours))
            check(servers, ours, theirs, (model, case))
            compared[model] += 1


@pytest.mark.parametrize(("model", "case"), ONLY_OURS)
def test_cases_that_triton_never_answers(servers: Servers, model: str, case: str) -> None:
    status, text = servers.ours.request(
        "POST",
        f"/v2/models/{model}/infer",
        {"inputs": [{"name": "CASE", "datatype": "BYTES", "shape": [1], "data": [case]}]},
    )
    assert status == 200
    assert ONLY_OURS[model, case] in text.replace('\\"', '"')


@pytest.mark.parametrize("empty_final", [False, True])
@pytest.mark.parametrize("case", cases_of("streams"))
def test_streamed_cases(servers: Servers, compared: Counter[str], case: str, empty_final: bool) -> None:
    same_stream(servers, compared, case_of("streams", case), empty_final)


STREAMED = [
    ("repeat", []),
    ("repeat", [3]),
    ("repeat", list(range(40))),
    ("square", [0]),
    ("square", [1]),
    ("square", [4]),
]
STREAMED += [("coroutine", [0]), ("coroutine", [5]), ("coroutine", [-1]), ("bls_stream", []), ("bls_stream", [1, 2, 3])]


@pytest.mark.parametrize("empty_final", [False, True])
@pytest.mark.parametrize(("model", "values"), STREAMED)
def test_streams(servers: Servers, compared: Counter[str], model: str, values: list[int], empty_final: bool) -> None:
    same_stream(servers, compared, Call(model, {"IN": np.array(values, np.int32)}, id="s"), empty_final)


def same_stream(servers: Servers, compared: Counter[str], call: Call, empty_final: bool) -> None:
    """The same responses in the same order, with the same parameters: the final ones included."""
    theirs, ours = (server.streamed(call, empty_final) for server in (servers.theirs, servers.ours))
    assert len(ours) == len(theirs), (ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert servers.text(one) == servers.text(other)
    compared["streams"] += 1


@pytest.mark.parametrize("model", ["repeat", "square", "coroutine"])
def test_one_output_of_a_stream(servers: Servers, compared: Counter[str], model: str) -> None:
    call = Call(model, {"IN": np.array([2], np.int32)}, outputs=("OUT",))
    same_stream(servers, compared, call, True)


def test_decoupled_models_over_http(servers: Servers, compared: Counter[str]) -> None:
    call = Call("repeat", {"IN": np.array([2], np.int32)})
    theirs, ours = (server.over_http(call) for server in (servers.theirs, servers.ours))
    assert ours.code == theirs.code
    assert theirs.error in ours.error
    compared["streams"] += 1


ADD_SUB = {
    "one row": Call("add_sub", {"LEFT": np.ones((1, 4), np.float32), "RIGHT": np.full((1, 4), 2, np.float32)}, id="a"),
    "rows": Call("add_sub", {"LEFT": np.ones((3, 4), np.float32), "RIGHT": np.full((3, 4), 2, np.float32)}),
    "one output": Call(
        "add_sub", {"LEFT": np.ones((1, 4), np.float32), "RIGHT": np.ones((1, 4), np.float32)}, outputs=("DIFFERENCE",)
    ),
}
PREPROCESSING = {
    "one text": Call("preprocessing", {"TEXT": np.array([[b"a few words"]], np.object_)}, id="b"),
    "two texts": Call("preprocessing", {"TEXT": np.array([[b"short"], ["größere Wörter".encode()]], np.object_)}),
    "no words": Call("preprocessing", {"TEXT": np.array([[b""]], np.object_)}),
    "a step alone": Call("tokenize", {"TEXT": np.array([[b"one two"], [b"three"]], np.object_)}),
}


@pytest.mark.parametrize("name", [*ADD_SUB, *PREPROCESSING])
def test_calls(servers: Servers, compared: Counter[str], name: str) -> None:
    call = (ADD_SUB | PREPROCESSING)[name]
    for transport in ("over_http", "over_grpc"):
        theirs, ours = (getattr(server, transport)(call) for server in (servers.theirs, servers.ours))
        assert theirs.code in ("200", "OK")
        assert ours == theirs
        compared["calls"] += 1


def test_bytes_that_are_no_text(servers: Servers, compared: Counter[str]) -> None:
    """Over gRPC, where they can be written."""
    call = Call("preprocessing", {"TEXT": np.array([[b"extraordinary words"]], np.object_)})
    theirs, ours = (server.over_grpc(call) for server in (servers.theirs, servers.ours))
    assert ours == theirs
    assert b"bytes \xff" in ours.outputs["LABELS"][2]
    compared["calls"] += 1


def test_binary_answers(servers: Servers, compared: Counter[str]) -> None:
    """The same header and the same bytes behind it."""
    header = {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
            for name in ("LEFT", "RIGHT")
        ],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("SUM", "DIFFERENCE")],
    }
    encoded = json.dumps(header).encode()
    data = encoded + np.arange(8, dtype=np.float32).tobytes()
    found = []
    for server in (servers.theirs, servers.ours):
        status, headers, body = server.raw("/v2/models/add_sub/infer", data, len(encoded))
        length = int(headers["Inference-Header-Content-Length"])
        found.append((status, json.loads(body[:length]), body[length:]))
    assert found[0] == found[1]
    assert len(found[0][2]) == 32
    compared["calls"] += 1


# What a model sees.

REQUESTS = {
    "plain": {},
    "parameters": {"text": "v", "number": 5, "flag": True},
    "scheduling": {"priority": 0, "timeout": 5_000_000},
    "sequence": {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
    "a sequence with a name": {"sequence_id": "seven", "sequence_end": True},
}


@pytest.mark.parametrize("transport", ["over_http", "over_grpc"])
@pytest.mark.parametrize("name", REQUESTS)
def test_requests_as_the_model_sees_them(servers: Servers, compared: Counter[str], name: str, transport: str) -> None:
    call = Call(
        "view",
        {"IN": np.ones(3, np.float32), "MORE": np.ones((2, 1), np.int32)},
        id="the id",
        parameters=REQUESTS[name],
        outputs=("AFTER", "SEEN"),
    )
    seen = []
    for server in (servers.theirs, servers.ours):
        answer = getattr(server, transport)(call)
        view = json.loads(said(answer))
        del view["args"]
        # gRPC's parameters are a map without order.
        view["parameters"] = json.loads(view["parameters"])
        view["inputs"].sort()
        seen.append((view, answer.outputs["AFTER"], answer.parameters))
    assert seen[1] == seen[0]
    compared["requests seen"] += 1


def test_parameters_are_written_as_triton_writes_them(servers: Servers, compared: Counter[str]) -> None:
    """To the letter, over HTTP, where they have an order."""
    parameters = {"z": 'a "quoted" ä\n', "a": -4, "flag": False, "large": 2**40}
    call = Call("view", {"IN": np.ones(1, np.float32)}, parameters=parameters)
    texts = [json.loads(said(server.over_http(call)))["parameters"] for server in (servers.theirs, servers.ours)]
    assert texts[1] == texts[0]
    compared["requests seen"] += 1


@pytest.mark.parametrize("name", ["view", *VIEWS])
def test_arguments_of_initialize(servers: Servers, compared: Counter[str], name: str) -> None:
    values = np.ones((1, 1), np.float32) if name == "view_scheduled" else np.ones(1, np.float32)
    call = Call(name, {"IN": values}, outputs=("SEEN",))
    found = []
    for server in (servers.theirs, servers.ours):
        args = json.loads(servers.text(said(server.over_http(call))))["args"]
        args["model_config"] = json.loads(args["model_config"])
        if name in INSTANCES:  # either instance may have answered
            assert args.pop("model_instance_name") in INSTANCES[name]
        found.append(args)
    theirs, ours = found
    differences = list(differing("", theirs, ours))
    assert not differences
    compared["arguments"] += 1


def differing(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from differing(f"{path}.{key}", theirs.get(key, "absent"), ours.get(key, "absent"))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differing(f"{path}[{index}]", one, other)
    elif theirs != ours:
        yield path, theirs, ours


def test_log_lines(servers: Servers, compared: Counter[str]) -> None:
    servers.theirs.over_http(case_of("interface", "logger"))
    servers.ours.over_http(case_of("interface", "logger"))
    levels = {
        "logged plainly": ("I", "info"),
        "logged with a level": ("W", "warning"),
        "logged as information": ("I", "info"),
        "logged as a warning": ("W", "warning"),
        "logged as an error": ("E", "error"),
        "logged for the curious": ("I", "debug"),
    }
    their_lines = servers.their_log.read_text().splitlines()
    events = servers.worker.log_events()
    for text, (letter, level) in levels.items():
        assert any(text in line and line.startswith(letter) for line in their_lines), text
        (event, *_) = [each for each in events if each.get("event") == text]
        assert (event["level"], event["model"]) == (level, "interface")
    compared["log lines"] += len(levels)
